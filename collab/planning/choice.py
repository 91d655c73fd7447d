"""Resolves a rank or a budget to a form and a rank for each layer."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from ..calibration.calibrate import Calibration
from ..decomposition import FORMS, FormName, form_named
from ..decomposition.options import Content
from ..decomposition.rank import resolve_ranks
from ..errors import BudgetError
from ..reparametrization.layer import LayerProblem
from ..reparametrization.model import LayerProblems
from ..steps.conversion import LayerConversion
from .allocation import balanced
from .config import ConversionConfig
from .cost import LayerShape
from .predict import predict, solve_error, together

logger = logging.getLogger(__name__)

LENGTHS = (16, 32, 64, 128, 256, 512)
"""Sequence lengths, in tokens, at which speed is compared; less where a model takes less."""

_AS_FAST = 1.1
"""Times within this ratio count as equal: attention is a third of a model, and machines differ."""


@dataclass(frozen=True)
class Choice:
    """A form and a rank for every attention layer, in the order of the model.

    Attributes:
        forms: decomposition form of each layer.
        ranks: R of each layer.
        explanation: how they were chosen, for the report.
    """

    forms: list[FormName]
    ranks: list[int]
    explanation: dict[str, Any] = field(default_factory=dict)


def choose(
    config: ConversionConfig,
    problems: LayerProblems,
    calibration: Calibration | None = None,
    lengths: Sequence[int] = LENGTHS,
) -> Choice:
    """Chooses the form and rank of each layer for a rank or a budget.

    Args:
        config: settings, with one of `rank`, `params` and `max_error`.
        problems: the model's attention layers.
        calibration: calibration that the layers' moments are from.
        lengths: sequence lengths to compare speed at, in tokens.

    Raises:
        RankError: if a rank is out of range or there is not one for each layer.
        BudgetError: if no rank is within the budget.
    """
    if config.rank is not None:
        ranks = resolve_ranks(config.rank, problems.full_ranks)
        return Choice([config.fixed_form] * len(ranks), ranks)
    if config.allocation == "auto":
        synthetic = calibration is not None and calibration.summary.get("source") == "synthetic"
        config = replace(config, allocation="uniform" if synthetic else "balanced")
    candidates: tuple[FormName, ...] = FORMS if config.form == "auto" else (config.fixed_form,)
    fitting = {form: _ranks(form, config, problems) for form in candidates}
    fitting = {form: ranks for form, ranks in fitting.items() if ranks}
    if config.form == "auto":
        fitting = {form: _fast_ranks(form, ranks, config, problems) for form, ranks in fitting.items()}
    if not fitting:
        assert config.params is not None  # R = K has no error
        shapes = [LayerShape.of(problem) for problem in problems.values()]
        raise BudgetError(nothing_fits(config.params, candidates, config.content, shapes))
    if len(fitting) == 1 and config.form != "auto":
        form, ranks = next(iter(fitting.items()))
        return Choice([form] * len(ranks), ranks, {"budget": config.budget, "allocation": config.allocation})
    scores = {form: _judge(form, ranks, config, problems, lengths) for form, ranks in fitting.items()}
    form = min(scores, key=lambda candidate: scores[candidate]["cost"])
    if config.optimize == "speed":  # of those that are about as fast as each other, the closest to the original
        near = [other for other in scores if scores[other]["cost"] < _AS_FAST * scores[form]["cost"]]
        form = min(near, key=lambda candidate: scores[candidate]["error"])
    logger.info("Of %s, %s is the best choice.", ", ".join(fitting), form)
    slower = [str(length) for length, ratio in scores[form]["faster"].items() if ratio < 1]
    if config.optimize == "speed" and slower:
        logger.warning("No form within the budget is as fast as the original at %s tokens.", ", ".join(slower))
    return Choice(
        [form] * len(problems),
        fitting[form],
        {
            "budget": config.budget,
            "allocation": config.allocation,
            "optimize": config.optimize,
            "candidates": scores,
            "chosen": form,
        },
    )


def _ranks(form: FormName, config: ConversionConfig, problems: Mapping[str, LayerProblem]) -> list[int]:
    """The ranks of a form within the budget; empty if it cannot be met."""
    if config.params is not None and config.allocation == "balanced":
        ranks = balanced(problems, form, config.params, config.content)
        return ranks if all(ranks) else []
    ranks = []
    for problem in problems.values():
        shape = LayerShape.of(problem)
        if config.params is not None:
            rank = shape.rank_within(form, config.params * shape.parameters_before, config.content)
        else:
            assert config.max_error is not None
            rank = _smallest_rank(form, config.max_error, config, problem)
        if rank == 0:
            return []
        ranks.append(rank)
    return ranks


def _fast_ranks(
    form: FormName, ranks: list[int], config: ConversionConfig, problems: Mapping[str, LayerProblem]
) -> list[int]:
    """Ranks lowered to widths that cost no speed, if speed is to be optimized within a budget of parameters.

    The fused kernel takes heads of d dimensions (`collab.modeling.collab_kernel`), and heads of equal widths need no
    padding.
    """
    if config.optimize != "speed" or config.params is None:
        return ranks
    tensors = (problem.tensor for problem in problems.values())
    if form_named(form).separate:
        pairs = zip(ranks, tensors, strict=True)
        return [max(rank - rank % tensor.num_heads, min(rank, tensor.num_heads)) for rank, tensor in pairs]
    return [min(rank, tensor.head_dim) for rank, tensor in zip(ranks, tensors, strict=True)]


def _smallest_rank(form: FormName, error: float, config: ConversionConfig, problem: LayerProblem) -> int:
    """The smallest rank whose error is at most `error`; at R = K the error is 0.

    Full solves are slow, so predictions narrow the search: first as they are, then scaled by the ratio of the first
    solve to its prediction.
    """
    full_rank, solver = problem.tensor.full_rank, config.solver_options

    @cache
    def predicted(rank: int) -> float:
        return predict(problem, form, rank, config.content, solver)

    @cache
    def solved(rank: int) -> float:
        return 0.0 if rank == full_rank else solve_error(problem, form, rank, config.content, solver, config.seed)

    rank = _first(0, full_rank, lambda middle: predicted(middle) <= error)
    if form_named(form).closed:  # so the prediction is exact
        return rank
    if rank < full_rank and predicted(rank) > 0:
        ratio = solved(rank) / predicted(rank)
        rank = _first(0, full_rank, lambda middle: ratio * predicted(middle) <= error)
    fails, fits, step = rank - 1, rank, 1
    if solved(rank) <= error:
        while fails > 0 and solved(fails) <= error:
            step *= 2
            fails, fits = max(0, fails - step), fails
    else:
        fails, fits = rank, rank + 1
        while solved(fits) > error:
            step *= 2
            fails, fits = fits, min(full_rank, fits + step)
    return _first(fails, fits, lambda middle: solved(middle) <= error)


def _first(fails: int, fits: int, within: Callable[[int], bool]) -> int:
    """The smallest rank above `fails` that is `within` a budget, by bisection; `fits` is known to be."""
    while fits - fails > 1:
        middle = (fails + fits) // 2
        fails, fits = (fails, middle) if within(middle) else (middle, fits)
    return fits


def _judge(
    form: FormName,
    ranks: Sequence[int],
    config: ConversionConfig,
    problems: Mapping[str, LayerProblem],
    lengths: Sequence[int],
) -> dict[str, Any]:
    """Parameters, speed and error of a form at its ranks; `cost` is the objective to minimize."""
    parameters = 0
    errors = []
    before, after = dict.fromkeys(lengths, 0.0), dict.fromkeys(lengths, 0.0)
    for problem, rank in zip(problems.values(), ranks, strict=True):
        shape = LayerShape.of(problem)
        parameters += shape.parameters(form, rank, config.content)
        for length in lengths:
            before[length] += shape.time_before(length)
            after[length] += shape.time(form, rank, config.content, length)
        errors.append(predict(problem, form, rank, config.content, config.solver_options))
    error = together(errors)
    faster = {length: before[length] / after[length] for length in lengths}
    if config.optimize == "speed":
        cost: float = sum(1 / ratio for ratio in faster.values()) / len(faster)
    else:
        cost = error if config.params is not None else parameters
    return {"ranks": list(ranks), "parameters": parameters, "faster": faster, "error": error, "cost": cost}


def nothing_fits(params: float, forms: Sequence[FormName], content: Content, shapes: Sequence[LayerShape]) -> str:
    """The message for a budget below rank 1, with the smallest possible budget."""
    least = min(max(shape.parameters(form, 1, content) / shape.parameters_before for shape in shapes) for form in forms)
    return (
        f"No rank fits {params:g} of the query/key parameters: at rank 1 a layer keeps {least:.4f} of them already. "
        f"Keep at least {math.ceil(least * 1e4) / 1e4:g} (params, --params)."
    )


def compare_forms(problem: LayerProblem, layer: LayerConversion, config: ConversionConfig) -> dict[str, Any]:
    """Rank and predicted error of each form for one layer at the same number of parameters.

    Args:
        problem: the attention layer.
        layer: what it was converted to, whose own form needs no prediction.
        config: settings of the conversion.
    """
    row: dict[str, Any] = {}
    for form in FORMS:
        rank = LayerShape.of(problem).rank_within(form, layer.query_key.after, config.content)
        if form == layer.form and rank == layer.rank:
            row[form] = {"rank": rank, "error": layer.error if layer.score_error is None else layer.score_error}
            continue
        error = predict(problem, form, rank, config.content, config.solver_options) if rank else None
        row[form] = {"rank": rank, "error": error}
    return row
