"""`collab export`."""

from __future__ import annotations

from typing import get_args

import click

from ..errors import ConfigurationError
from ..graphs.options import FORMATS, ExportOptions, GraphFormat, GraphPrecision
from .command import command, gathers
from .options.calibration import export_calibration_options
from .options.measuring import speed_option
from .options.model import model_in, model_out
from .session import Session


def _options(form: GraphFormat, precision: GraphPrecision | None, int8: bool) -> ExportOptions:
    if int8 and precision not in (None, "int8"):
        raise ConfigurationError(f"--int8 is --precision int8, not {precision}.")
    return ExportOptions(form, "int8" if int8 else precision or "float32")


@command(
    "collab export half served --format openvino --precision int8 --calibration sentences.txt",
    "collab export sentence-transformers/all-MiniLM-L6-v2 served --format onnx --int8",
    summary="Write a model as an ONNX or OpenVINO graph, in int8 if wanted.",
)
@gathers("options", _options)
@click.option(
    "--format",
    "form",
    type=click.Choice(FORMATS),
    required=True,
    help="onnx: a graph for onnxruntime; openvino: one for OpenVINO. Both take any batch size and length. A model that "
    "writes text is a graph of its encoder and one of its decoder with a cache.",
)
@click.option(
    "--precision",
    type=click.Choice(get_args(GraphPrecision)),
    show_default="float32",
    help="Precision of the arithmetic. int8: for OpenVINO with the ranges of activations from --calibration; for "
    "onnxruntime a second graph beside the one in float32; for OpenVINO of a model that generates text the weights "
    "alone. bfloat16: OpenVINO alone.",
)
@click.option("--int8", is_flag=True, help="The same as --precision int8.")
@export_calibration_options
@model_in
@speed_option
@model_out
def export(session: Session) -> None:
    """Write MODEL, original or converted, in another format to the folder OUTPUT, and check it against PyTorch."""
    session.begin()
    from ..checkpoints.export import export as export_checkpoint
    from ..steps.export import Export
    from .outcome import finish

    finish(session, session.call(export_checkpoint), Export)
