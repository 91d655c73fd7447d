"""`collab expand`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from .options import loading_of, loading_options, overwrite_option, verbosity_options
from .running import bars, command_line, failures, set_up_logging
from .tables import show_step


@click.command(
    epilog="""\b
Examples:
  collab expand converted native
  collab expand converted native --allow-error 0.05"""
)
@click.argument("model")
@click.argument("output", type=click.Path(path_type=Path))
@click.option(
    "--allow-error",
    type=float,
    default=0.0,
    show_default=True,
    help="Relative error of a layer's query-key products at most, where a native layer cannot hold them exactly.",
)
@loading_options
@overwrite_option
@verbosity_options
def expand(model: str, output: Path, **given: Any) -> None:
    """Turn a converted MODEL back into a plain model of its original class, and write it to the folder OUTPUT.

    For servers that know only native classes: the result needs no code of its own, and has the original's size again.
    """
    set_up_logging(-1 if given["quiet"] else given["verbose"])
    with failures():
        from ..checkpoints.expand import expand_checkpoint, expansion_step

        command = command_line()
        with bars(shown=not given["quiet"]):
            expansion = expand_checkpoint(
                model,
                output,
                allow_error=given["allow_error"],
                reading=loading_of(given),
                overwrite=given["overwrite"],
                command=command,
            )
        step = expansion_step(expansion, model, command)
    if given["as_json"]:
        click.echo(json.dumps(step.record, indent=2))
    elif not given["quiet"]:
        show_step(step, output)
