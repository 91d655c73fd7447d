"""Graphs for OpenVINO, in int8 by NNCF if asked.

NNCF measures the ranges of activations on calibration rows, moves outliers of activations into the weights
(SmoothQuant, Xiao et al. 2023) and corrects biases. Weights and activations of every matrix product are then int8. Of
a model that writes text the weights alone are int8: a step reads all weights for one token of each row, so their bytes
are what it waits for, and ranges of activations would have to be measured over whole texts with their caches.
"""

from __future__ import annotations

import contextlib
import io
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

from .options import GraphPrecision
from .samples import Feed

PRECISION_KEY = ["collab", "precision"]
"""Where a graph says the precision that it is to be run in."""


def write_openvino(onnx_file: Path, output: Path, precision: GraphPrecision, feeds: Sequence[Feed] | None) -> None:
    """Writes an ONNX graph as OpenVINO's own format.

    Args:
        onnx_file: the graph.
        output: file to write; its weights go into a file of the same name that ends in ``.bin``.
        precision: the precision to run it in; ``int8`` quantizes it.
        feeds: the graph's inputs to measure the ranges of activations on, of rows without padding; None for int8 of
            the weights alone.
    """
    import openvino

    model = openvino.Core().read_model(onnx_file)  # convert_model would split a path at its commas
    if precision == "int8":
        model = _with_int8_weights(model) if feeds is None else _quantized(model, feeds)
    model.set_rt_info(precision, PRECISION_KEY)
    openvino.save_model(model, output, compress_to_fp16=False)


def _quantized(model: object, feeds: Sequence[Feed]) -> object:
    """The graph with int8 weights and activations."""
    with _quiet():
        import nncf

        data = nncf.Dataset(list(feeds))
        return nncf.quantize(model, data, model_type=nncf.ModelType.TRANSFORMER, subset_size=len(feeds))


def _with_int8_weights(model: object) -> object:
    """The graph with int8 weights, one scale for each output."""
    with _quiet():
        import nncf

        return nncf.compress_weights(model, mode=nncf.CompressWeightsMode.INT8_SYM)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silences NNCF, which prints bars and logs to streams of its own."""
    logger = logging.getLogger("nncf")
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        before = logger.level
        logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            logger.setLevel(before)
