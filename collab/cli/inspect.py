"""`collab inspect`."""

from __future__ import annotations

import json
from typing import Any

import click

from ..checkpoints.inspect import inspect_checkpoint
from ..heads.inspection import LENGTHS
from .head_tables import show_inspection
from .options import verbosity_options
from .running import failures, set_up_logging


@click.command(
    epilog="""\b
Examples:
  collab inspect sentence-transformers/all-MiniLM-L6-v2
  collab inspect ./model --num-heads 4 --length 64"""
)
@click.argument("model")
@click.option("--num-heads", type=int, help="Look at it as if its config said so many heads.")
@click.option(
    "--length",
    "lengths",
    type=int,
    multiple=True,
    help=f"Tokens to count the arithmetic for.  [default: {', '.join(map(str, LENGTHS))}]",
)
@click.option("--revision", help="Branch, tag or commit of a model on the Hub.")
@verbosity_options
def inspect(model: str, lengths: tuple[int, ...], **given: Any) -> None:
    """Show what the attention of MODEL, original or converted, is made of: shapes, parameters, arithmetic, and why."""
    set_up_logging(-1 if given["quiet"] else given["verbose"])
    with failures("Interrupted."):
        found = inspect_checkpoint(
            model, revision=given["revision"], num_heads=given["num_heads"], lengths=lengths or LENGTHS
        )
    if given["as_json"]:
        click.echo(json.dumps(found.to_dict(), indent=2))
    elif not given["quiet"]:
        show_inspection(found)
