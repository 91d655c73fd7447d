"""A model's graph in a format and precision."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from transformers import PreTrainedModel

from ..data.features import Batch
from .int8 import quantize
from .openvino import write_openvino
from .options import INT8_FILE, ONNX_FILE, OPENVINO_FILE, ExportOptions
from .runtime import graph_parts
from .trace import Graph, write_graph


def write_graphs(
    graph: Graph, folder: Path, options: ExportOptions, batches: Sequence[Batch]
) -> tuple[list[Path], int]:
    """Writes a model's graph, and in int8 for onnxruntime a second one.

    Args:
        graph: the graph.
        folder: folder to write to.
        options: format and precision.
        batches: rows without padding to measure the ranges of activations on, in int8 for OpenVINO.

    Returns:
        The files, that of the precision last, and the version of the ONNX operators.

    Raises:
        UnsupportedArchitectureError: if the model cannot be traced.
    """
    plain, small, openvino = (folder / name for name in (ONNX_FILE, INT8_FILE, OPENVINO_FILE))
    opset = write_graph(graph, plain)
    if options.format == "openvino":
        write_openvino(plain, openvino, options.precision, batches)
        for path in graph_parts(plain):
            path.unlink()
        return [openvino], opset
    if options.precision == "int8":
        quantize(plain, small)
        return [plain, small], opset
    return [plain], opset


def write_config(model: PreTrainedModel, folder: Path) -> None:
    """Writes the model's config without auto_map, so that tokenizers do not ask to trust remote code."""
    if hasattr(model.config, "auto_map"):
        del model.config.auto_map
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(folder)
