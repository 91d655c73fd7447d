"""`collab plan`."""

from __future__ import annotations

from pathlib import Path

import click

from ..calibration.options import CalibrationRequest
from ..decomposition.options import Content, SolverOptions
from ..io.options import LoadOptions
from .options import (
    calibration_options,
    content_option,
    figure_option,
    loading_options,
    model_argument,
    params_option,
    solver_options,
)
from .running import Command, Session


@click.command(
    cls=Command,
    epilog="""\b
Examples:
  collab plan sentence-transformers/all-MiniLM-L6-v2
  collab plan ./my-classifier --calibration sentences.txt --params 0.5 --params 0.25 --figure plan.png""",
)
@model_argument
@params_option(multiple=True)
@figure_option
@content_option
@calibration_options
@solver_options
@loading_options
def plan(
    model: str,
    *,
    params: tuple[float, ...],
    figure: Path | None,
    content: Content,
    calibration: CalibrationRequest,
    solver: SolverOptions,
    load_options: LoadOptions,
    session: Session,
) -> None:
    """Show what converting MODEL would cost and how faithful it would be. Converts nothing."""
    session.begin(model)
    from ..checkpoints.plan import plan as plan_checkpoint
    from ..figures.plan import draw_plan
    from ..planning.plan import FRACTIONS
    from .tables import show_plan

    planned = plan_checkpoint(
        model,
        calibration=calibration,
        load_options=load_options,
        fractions=params or FRACTIONS,
        content=content,
        solver=solver,
        progress=session.progress,
    )
    if figure is not None:
        draw_plan(planned, figure)
    session.result(planned.to_dict(), lambda: show_plan(planned))
