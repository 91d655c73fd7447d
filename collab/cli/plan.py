"""`collab plan`."""

from __future__ import annotations

from pathlib import Path

import click

from ..compression.options import CompressionConfig
from ..decomposition.options import Content, SolverOptions
from ..errors import ConfigurationError
from ..planning.config import ConversionConfig
from ..processes import is_main_process
from ..steps.step import display_names
from .command import command, gathers, only_with
from .options.calibration import (
    calibration_options,
    content_option,
    flops_option,
    params_option,
    solver_options,
    step_bytes_option,
)
from .options.measuring import figure_option
from .options.model import model_in
from .session import Session


def _config(
    whole: bool,
    params: tuple[float, ...],
    flops: tuple[float, ...],
    step_bytes: tuple[float, ...],
    content: Content,
    solver: SolverOptions,
) -> ConversionConfig | CompressionConfig:
    """Settings of what is planned, with the first of the budgets."""
    if not whole:
        budget = (params or ConversionConfig.FRACTIONS)[0]
        return ConversionConfig(params=budget, form="auto", allocation="uniform", content=content, solver=solver)
    if content != "exact" or solver != SolverOptions():
        raise ConfigurationError("--content and the options of the solver belong to a plan without --whole.")
    if not (params or flops or step_bytes):
        return CompressionConfig(flops=CompressionConfig.FRACTIONS[0], healed=True)
    return CompressionConfig(
        flops=next(iter(flops), None),
        params=next(iter(params), None),
        step_bytes=next(iter(step_bytes), None),
        healed=True,  # as collab compress does it
    )


@command(
    "collab plan sentence-transformers/all-MiniLM-L6-v2",
    "collab plan ./my-classifier --calibration sentences.txt --params 0.5 --params 0.25 --figure plan.png",
    "collab plan ./my-classifier --calibration sentences.txt --whole --flops 0.5",
    "collab plan ./translator --calibration sentences.txt --whole --step-bytes 0.5",
    summary="Show what several budgets would cost and lose, before anything is written.",
)
@gathers("config", _config)
@params_option(multiple=True)
@click.option(
    "--whole", is_flag=True, help="Plan a compression of the whole model (collab compress) instead of a conversion."
)
@only_with("whole", flops_option(multiple=True), step_bytes_option(multiple=True))
@figure_option
@content_option
@calibration_options("synthetic for models of text, none for others")
@solver_options
@model_in
def plan(
    model: str,
    params: tuple[float, ...],
    flops: tuple[float, ...],
    step_bytes: tuple[float, ...],
    figure: Path | None,
    session: Session,
) -> None:
    """Show what converting or compressing MODEL would cost and how faithful it would be. Writes nothing."""
    if figure is not None:
        from ..figures.style import check_figure

        check_figure(figure)
    session.begin(divides=True)
    from ..checkpoints.plan import plan as plan_checkpoint
    from ..figures.plan import draw_plan
    from .tables import show_plan

    planned = session.call(plan_checkpoint, fractions=flops or params or step_bytes or None)
    if figure is not None and is_main_process():
        draw_plan(planned, figure)
    session.result(planned.to_dict(), lambda: show_plan(planned, *display_names([model])))
