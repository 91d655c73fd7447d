"""`collab export`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from .options import loading_of, loading_options, overwrite_option, verbosity_options
from .running import command_line, failures, set_up_logging
from .tables import show_step


@click.command(
    epilog="""\b
Examples:
  collab export converted served --format onnx
  collab export sentence-transformers/all-MiniLM-L6-v2 served --format onnx --int8"""
)
@click.argument("model")
@click.argument("output", type=click.Path(path_type=Path))
@click.option(
    "--format",
    "form",
    type=click.Choice(["onnx"]),
    required=True,
    help="onnx: a graph for onnxruntime, of any batch size and length.",
)
@click.option("--int8", is_flag=True, help="Write a second graph with int8 weights beside it.")
@loading_options
@overwrite_option
@verbosity_options
def export(model: str, output: Path, form: str, **given: Any) -> None:
    """Write MODEL, original or converted, in another format to the folder OUTPUT, and check it against PyTorch."""
    set_up_logging(-1 if given["quiet"] else given["verbose"])
    with failures():
        from ..checkpoints.export_onnx import OnnxOptions, export_onnx  # slow to import

        step = export_onnx(
            model,
            output,
            OnnxOptions(given["int8"], given["overwrite"]),
            reading=loading_of(given),
            command=command_line(),
        )
    if given["as_json"]:
        click.echo(json.dumps(step.record, indent=2))
    elif not given["quiet"]:
        show_step(step, output)
