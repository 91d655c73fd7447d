"""`collab plan`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from ..checkpoints.plan import plan_checkpoint
from ..errors import ConfigurationError
from ..figures.plan import draw_plan
from ..planning.plan import FRACTIONS
from .options import (
    calibration_of,
    calibration_options,
    content_option,
    loading_of,
    loading_options,
    solver_of,
    solver_options,
    verbosity_options,
)
from .running import bars, failures, set_up_logging
from .tables import show_plan


@click.command(
    epilog="""\b
Examples:
  collab plan sentence-transformers/all-MiniLM-L6-v2
  collab plan ./my-classifier --calibration sentences.txt --params 0.5 --params 0.25 --figure plan.png"""
)
@click.argument("model")
@click.option(
    "--params",
    type=float,
    multiple=True,
    help="A part of the query/key parameters to look at; may be given several times.  [default: 1/2, 1/3, 1/6]",
)
@click.option("--figure", type=click.Path(path_type=Path, dir_okay=False), help="Draw the plan to this file.")
@content_option
@calibration_options
@solver_options
@loading_options
@verbosity_options
def plan(model: str, params: tuple[float, ...], figure: Path | None, **given: Any) -> None:
    """Show what converting MODEL would cost and how faithful it would be. Converts nothing."""
    set_up_logging(-1 if given["quiet"] else given["verbose"])
    with failures("Interrupted."):
        if not all(0 < one <= 1 for one in params):
            raise ConfigurationError("--params must be above 0 and at most 1.")
        with bars(shown=not given["quiet"]) as progress:
            found = plan_checkpoint(
                model,
                calibration=calibration_of(given),
                reading=loading_of(given),
                fractions=params or FRACTIONS,
                content=given["content"],
                solver=solver_of(given),
                on_batch=progress.batch,
                on_layer=progress.layer,
            )
        if figure is not None:
            draw_plan(found, figure)
    if given["as_json"]:
        click.echo(json.dumps(found.to_dict(), indent=2))
    elif not given["quiet"]:
        show_plan(found)
