"""Options of measurements."""

from __future__ import annotations

from pathlib import Path

import click

from ...evaluation.options import REPORTED_LENGTHS
from ..command import Decorator, grouped, only_with

against_option = click.option(
    "--against", metavar="MODEL", help="Another model, measured on the same rows and in turn with the first."
)
figure_option = click.option(
    "--figure",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Draw the result to this file: .png, .pdf or .svg.",
)
page_options = grouped(
    "Output",
    click.option(
        "--html",
        type=click.Path(path_type=Path, dir_okay=False),
        help="Write a page to this file, which opens in any browser without a network.",
    ),
    only_with("html", click.option("--overwrite", is_flag=True, help="Replace the page if it exists.")),
)
lengths_option = click.option(
    "--length",
    "lengths",
    type=int,
    multiple=True,
    callback=lambda ctx, param, values: values or None,
    show_default=f"{', '.join(map(str, REPORTED_LENGTHS))}, or what the model takes where that is less",
    help="Tokens of a row; may be given several times.",
)
speed_option = grouped(
    "Output",
    click.option(
        "--speed/--no-speed",
        "measure_speed",
        default=True,
        help="Measure for a few seconds how many times as fast as the original the result is; of a graph in lower "
        "precision, as in float32.",
    ),
)


def rounds_option(default: int) -> Decorator:
    """--rounds of a measurement of speed."""
    return click.option(
        "--rounds", default=default, help="Rounds of the measurement of speed, in which the models alternate."
    )
