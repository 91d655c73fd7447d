"""Refinement as a part of a conversion: its settings, which layers keep the new weights, and their reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from transformers import PreTrainedModel

from ..calibration.calibrate import Calibration
from ..errors import ConfigurationError
from ..modeling.collab_attention import CollaborativeAttention
from ..planning.config import ConversionConfig
from ..reparametrization.layer import factors_of
from ..reparametrization.model import LayerProblems
from ..reparametrization.moments import LayerMoments
from ..steps.conversion import LayerConversion, Refinement
from ..training.options import RefineOptions
from ..training.refine import Accept


def refine_options(config: ConversionConfig, calibration: Calibration | None) -> RefineOptions | None:
    """Settings of refinement; None if it is turned off, or by default if there are no rows to refine on.

    Raises:
        ConfigurationError: if a number of steps is given without rows to refine on.
    """
    steps = config.refine
    if steps in ("none", 0):
        return None
    if calibration is None or not calibration.has_rows:
        if steps == "auto":
            return None
        raise ConfigurationError(
            "Refinement needs rows: calibrate on data or random words, not a callable, or use refine='auto' or 'none'."
        )
    return RefineOptions(seed=config.seed) if steps == "auto" else RefineOptions(int(steps), seed=config.seed)


def within(max_error: float | None, problems: LayerProblems) -> Accept | None:
    """Accepts refined layers whose score error is within `ConversionConfig.max_error`; None without that limit."""
    if max_error is None:
        return None

    def accept(name: str, layer: CollaborativeAttention) -> bool:
        problem = problems[name]
        assert problem.moments is not None
        with torch.no_grad():
            return problem.score_error(factors_of(layer), problem.moments) <= max_error

    return accept


def refined_reports(
    reports: list[LayerConversion],
    refinement: Refinement,
    converted: PreTrainedModel,
    problems: LayerProblems,
    held_out: Mapping[str, LayerMoments] | None,
) -> list[LayerConversion]:
    """The reports with the errors of the layers after refinement."""
    refined = []
    for report in reports:
        layer = refinement.layers[report.name]
        errors = report.error, report.score_error, report.held_out_error
        if layer.kept:
            errors = _errors(report.name, converted, problems, held_out)
        error, score_error, held_out_error = errors
        refined.append(
            replace(
                report,
                error=error,
                score_error=score_error,
                held_out_error=held_out_error,
                output_error_before=layer.before,
                output_error_after=layer.error,
            )
        )
    return refined


def _errors(
    name: str, converted: PreTrainedModel, problems: LayerProblems, held_out: Mapping[str, LayerMoments] | None
) -> tuple[float, float | None, float | None]:
    """The errors of a layer's weights, and of its scores on the rows of the moments and on held-out rows."""
    problem, layer = problems[name], converted.get_submodule(name)
    assert isinstance(layer, CollaborativeAttention)
    with torch.no_grad():
        factors = factors_of(layer).to(problem.tensor.query)
        return (
            problem.error(factors),
            None if problem.moments is None else problem.score_error(factors, problem.moments),
            None if held_out is None else problem.score_error(factors, held_out[name]),
        )
