"""Eight-bit weights for a graph, by onnxruntime."""

from __future__ import annotations

import logging
from pathlib import Path


def quantize(file: Path, output: Path) -> None:
    """Writes a graph with int8 weights and dynamically quantized activations.

    Weights have one scale per column: with one scale per matrix, the cosine of the demo checkpoint's token states to
    the original was .94 instead of .987. Weights use seven of the eight bits, because sums of full bytes overflow on
    processors without VNNI; that cost .002.

    Args:
        file: the graph.
        output: file to write.
    """
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    model = onnx.load(str(file), load_external_data=False)
    graph = model.graph
    del graph.value_info[:]  # the quantizer transposes weights, but not their recorded shapes
    plain = file.with_name("plain.onnx")  # in the same folder, where a separate weights file is looked for
    onnx.save(model, str(plain))
    dimensions = {tensor.name: len(tensor.dims) for tensor in graph.initializer}
    # onnxruntime has no kernel for per-column scales of a stack of matrices, such as the cores of the tucker form.
    stacks = [node.name for node in graph.node if any(dimensions.get(name, 0) > 2 for name in node.input)]
    logger = logging.getLogger()
    before = logger.level
    logger.setLevel(logging.ERROR)  # it logs advice for graphs of other exporters to the root logger
    try:
        quantize_dynamic(
            str(plain),
            str(output),
            per_channel=True,
            reduce_range=True,
            weight_type=QuantType.QInt8,
            nodes_to_exclude=stacks,
            use_external_data_format=_has_weights_beside(file),
        )
    finally:
        logger.setLevel(before)
        plain.unlink()


def _has_weights_beside(file: Path) -> bool:
    return any(path != file for path in file.parent.glob(f"{file.name}*"))
