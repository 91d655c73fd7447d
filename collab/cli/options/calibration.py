"""Options on calibration, on the solver, and on what a conversion keeps."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, get_args

import click

from ...calibration.options import CalibrationOptions, CalibrationRequest
from ...data.source import Mixture, NamedSource
from ...decomposition.options import CONTENTS, METHODS, SolverOptions, SolverPrecision
from ...errors import ConfigurationError
from ..command import Decorator, gathers, grouped
from .data import SEVERAL, SOURCES, Unlabelled, max_length_option, samples_option, unlabelled_options
from .model import device_option


def _source(calibration: tuple[str, ...], unlabelled: Unlabelled) -> NamedSource | Mixture | Literal["default", "none"]:
    if len(calibration) > 1 and "none" in calibration:
        raise ConfigurationError("--calibration none goes without data, so it cannot be combined with other sources.")
    if not calibration:
        return "default"
    return "none" if calibration == ("none",) else unlabelled.sources(calibration)


def _calibration(
    calibration_source: NamedSource | Mixture | Literal["default", "none"],
    calibration_samples: int,
    max_length: int | None,
    calibration_cache: Path | None,
    calibration_in_order: bool = False,
    seed: int = CalibrationOptions.seed,
    shard: bool = False,
) -> CalibrationRequest:
    amount = CalibrationOptions(calibration_samples, max_length, seed=seed, shard=shard)
    return CalibrationRequest(calibration_source, amount, calibration_cache, calibration_in_order)


def _sources_option(default: str, text: str) -> Decorator:
    """--calibration, with what the help says of its default and of the data."""
    return grouped(
        "Data",
        click.option("--calibration", metavar="SOURCE", multiple=True, show_default=default, help=f"{text} {SEVERAL}"),
    )


def calibration_options(default: str, *, weights_alone: bool = True) -> Decorator:
    """--calibration and what belongs to it.

    Args:
        default: what the help says of its default.
        weights_alone: whether the command can do without calibration.
    """
    without = "; or none (go by the weights alone)" if weights_alone else ""
    return gathers(
        "calibration",
        _calibration,
        gathers("calibration_source", _source),
        _sources_option(default, f"Data to calibrate on: {SOURCES}{without}."),
        unlabelled_options(("calibration", "heal"), "--calibration-"),
        samples_option(CalibrationOptions.samples, "--calibration-samples"),
        max_length_option,
        grouped(
            "Expert",
            click.option(
                "--calibration-cache",
                type=click.Path(path_type=Path, dir_okay=False),
                help="Keep the moments in this file, or use those that it holds.",
            ),
        ),
    )


def _measured_on(
    calibration: tuple[str, ...],
    unlabelled: Unlabelled,
    calibration_samples: int,
    max_length: int | None,
) -> CalibrationRequest:
    options = CalibrationOptions(calibration_samples, max_length)
    return CalibrationRequest(unlabelled.sources(calibration) if calibration else "default", options)


export_calibration_options = gathers(
    "calibration",
    _measured_on,
    _sources_option(
        "synthetic in int8, none otherwise",
        f"Data to measure the ranges of activations on, and how far the graph agrees: {SOURCES}.",
    ),
    unlabelled_options("calibration", "--calibration-"),
    samples_option(CalibrationOptions.samples, "--calibration-samples"),
    max_length_option,
)
"""--calibration and what belongs to it, for a graph."""

solver_options = grouped(
    "Expert",
    gathers(
        "solver",
        SolverOptions,
        click.option(
            "--solver",
            "method",
            type=click.Choice(METHODS),
            default=SolverOptions.method,
            help="structured: collab's own. tensorly: the reference, on the dense tensor; slow.",
        ),
        click.option("--max-sweeps", default=SolverOptions.max_sweeps, help="Largest number of sweeps of the solver."),
        click.option(
            "--tolerance", default=SolverOptions.tolerance, help="Stop when a sweep lowers the relative error by less."
        ),
        click.option(
            "--precision",
            type=click.Choice(get_args(SolverPrecision)),
            default=SolverOptions.precision,
            help="Precision of the arithmetic.",
        ),
        device_option("cpu; to heal, cuda if there is a GPU"),
    ),
)
content_option = grouped(
    "Expert",
    click.option(
        "--content",
        type=click.Choice(CONTENTS),
        default="exact",
        help="exact: the query bias becomes an additive term of the scores. folded: it becomes an offset of the "
        "queries, so that every attention kernel applies and less is stored.",
    ),
)


def _fraction_option(flag: str, of: str, budgets: str | None) -> Decorator:
    """A budget as a fraction, or, with the default `budgets`, which may be empty, several."""
    return click.option(
        flag,
        type=click.FloatRange(0, 1, min_open=True),
        multiple=budgets is not None,
        show_default=budgets or False,
        help=f"The largest fraction of the {of} to keep, such as 0.5."
        + ("" if budgets is None else " May be given several times."),
    )


def params_option(multiple: bool = False) -> Decorator:
    """--params, once or several times."""
    if multiple:
        return _fraction_option("--params", "query/key parameters (with --whole, of all)", "1/2, 1/3, 1/6")
    return _fraction_option("--params", "query/key parameters", None)


def flops_option(multiple: bool = False) -> Decorator:
    """--flops, once or several times."""
    return _fraction_option("--flops", "layers' FLOPs", "0.75, 0.5, 0.33, 0.25" if multiple else None)


def step_bytes_option(multiple: bool = False) -> Decorator:
    """--step-bytes, once or several times."""
    what = "bytes that the layers of a generating model read for a token"
    return _fraction_option("--step-bytes", what, "" if multiple else None)
