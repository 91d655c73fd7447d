"""`collab export`."""

from __future__ import annotations

import click

from .command import command
from .options.model import model_in, model_out
from .session import Session


@command(
    "collab export converted served --format onnx",
    "collab export sentence-transformers/all-MiniLM-L6-v2 served --format onnx --int8",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["onnx"]),
    required=True,
    expose_value=False,
    help="onnx: a graph for onnxruntime, of any batch size and length.",
)
@click.option("--int8", is_flag=True, help="Write a second graph with int8 weights beside it.")
@model_in
@model_out
def export(session: Session) -> None:
    """Write MODEL, original or converted, in another format to the folder OUTPUT, and check it against PyTorch."""
    session.begin()
    from ..checkpoints.export_onnx import export_onnx
    from ..steps.export import Export
    from .outcome import finish

    finish(session, session.call(export_onnx), Export)
