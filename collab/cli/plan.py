"""`collab plan`."""

from __future__ import annotations

from pathlib import Path

import click

from ..calibration.options import CalibrationRequest
from ..compression.options import CompressionConfig
from ..decomposition.options import Content, SolverOptions
from ..errors import ConfigurationError
from ..io.options import LoadOptions
from .command import command
from .options.calibration import calibration_options, content_option, flops_option, params_option, solver_options
from .options.measuring import figure_option
from .options.model import model_in
from .session import Session


@command(
    "collab plan sentence-transformers/all-MiniLM-L6-v2",
    "collab plan ./my-classifier --calibration sentences.txt --params 0.5 --params 0.25 --figure plan.png",
    "collab plan ./my-classifier --calibration sentences.txt --whole --flops 0.5",
)
@params_option(multiple=True)
@click.option(
    "--whole", is_flag=True, help="Plan a compression of the whole model (collab compress) instead of a conversion."
)
@flops_option(multiple=True)
@figure_option
@content_option
@calibration_options()
@solver_options
@model_in
def plan(
    model: str,
    *,
    params: tuple[float, ...],
    whole: bool,
    flops: tuple[float, ...],
    figure: Path | None,
    content: Content,
    calibration: CalibrationRequest,
    solver: SolverOptions,
    load_options: LoadOptions,
    session: Session,
) -> None:
    """Show what converting MODEL would cost and how faithful it would be. Converts nothing."""
    if whole and (params or figure or content != "exact" or solver != SolverOptions()):
        raise ConfigurationError(
            "--params, --figure, --content and the options of the solver belong to a plan without --whole."
        )
    if flops and not whole:
        raise ConfigurationError("--flops belongs to --whole. Budgets of a conversion are --params.")
    configs = [CompressionConfig(flops=budget) for budget in flops]
    if figure is not None:
        from ..figures.style import check_figure

        check_figure(figure)
    session.begin(model)
    if whole:
        _plan_whole(model, [config.flops or 0.0 for config in configs], calibration, load_options, session)
        return
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


def _plan_whole(
    model: str, flops: list[float], calibration: CalibrationRequest, load_options: LoadOptions, session: Session
) -> None:
    """Shows what compressions of the whole model would lose."""
    from ..checkpoints.compress import plan_whole
    from ..compression.compress import FRACTIONS
    from .tables import show_compression_plan

    fractions = flops or list(FRACTIONS)
    planned = plan_whole(
        model,
        CompressionConfig(flops=fractions[0]),
        fractions=fractions,
        calibration=calibration,
        load_options=load_options,
        progress=session.progress,
    )
    session.result(planned.to_dict(), lambda: show_compression_plan(planned))
