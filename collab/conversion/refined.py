"""Refinement as a part of a conversion: whether, how, which layers keep it, and what the report says of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from transformers import PreTrainedModel

from ..calibration.calibrate import Calibration
from ..errors import ConfigurationError
from ..io.report import LayerReport
from ..modeling.collab_attention import CollaborativeAttention
from ..planning.config import ConversionConfig
from ..reparametrization.layer import factors_of
from ..reparametrization.model import LayerProblems
from ..reparametrization.moments import LayerMoments
from ..training.options import RefineOptions
from ..training.refine import Accept, Refinement


def refine_options(config: ConversionConfig, calibration: Calibration | None) -> RefineOptions | None:
    """How to refine; None where it is not wanted, or there is nothing to refine on.

    Raises:
        ConfigurationError: if a number of steps is asked for without rows to refine on.
    """
    steps = config.refine
    if steps in ("none", 0):
        return None
    if calibration is None or not calibration.fitted or not calibration.batches:
        if steps == "auto":
            return None
        raise ConfigurationError(
            "Refinement needs rows: calibrate on data or on random words, and not by a callable, or set refine to auto "
            "or none."
        )
    return RefineOptions(seed=config.seed) if steps == "auto" else RefineOptions(int(steps), seed=config.seed)


def within(max_error: float | None, problems: LayerProblems) -> Accept | None:
    """Whether the scores of a refined layer keep what `ConversionConfig.max_error` promises of them."""
    if max_error is None:
        return None

    def accept(name: str, layer: CollaborativeAttention) -> bool:
        problem = problems[name]
        assert problem.moments is not None
        with torch.no_grad():
            return problem.score_error(factors_of(layer), problem.moments) <= max_error

    return accept


def refined_reports(
    reports: list[LayerReport],
    refinement: Refinement,
    converted: PreTrainedModel,
    problems: LayerProblems,
    held_out: Mapping[str, LayerMoments] | None,
) -> list[LayerReport]:
    """The reports with the errors of the layers as refinement left them."""
    return [
        replace(
            report,
            output_error_before=refinement.layers[report.name].before,
            output_error_after=refinement.layers[report.name].error,
            **(_errors(report.name, converted, problems, held_out) if refinement.layers[report.name].kept else {}),
        )
        for report in reports
    ]


def _errors(
    name: str, converted: PreTrainedModel, problems: LayerProblems, held_out: Mapping[str, LayerMoments] | None
) -> dict[str, Any]:
    """The errors of a layer's scores and weights, as `LayerReport` has them."""
    problem, layer = problems[name], converted.get_submodule(name)
    assert isinstance(layer, CollaborativeAttention)
    with torch.no_grad():
        factors = factors_of(layer).to(problem.tensor.query)
        return {
            "error": problem.tensor.relative_error(factors),
            "score_error": None if problem.moments is None else problem.score_error(factors, problem.moments),
            "held_out_error": None if held_out is None else problem.score_error(factors, held_out[name]),
        }
