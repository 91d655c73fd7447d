"""From what a user asks for to a form and a rank for each layer."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from ..calibration.calibrate import Calibration
from ..decomposition import FORMS, Form
from ..decomposition.options import Content
from ..decomposition.rank import resolve_ranks
from ..errors import BudgetError
from ..reparametrization.layer import LayerProblem
from ..reparametrization.model import LayerProblems
from .allocation import balanced
from .config import ConversionConfig
from .cost import LayerShape
from .predict import predict, solve_error, together

logger = logging.getLogger(__name__)

LENGTHS = (16, 32, 64, 128, 256, 512)
"""Tokens of the sequences that speed is judged at."""

_AS_FAST = 1.1
"""Times within this ratio are about the same: attention is a third of a model, and machines differ."""


@dataclass(frozen=True)
class Choice:
    """A form and a rank for every attention layer, in the order of the model.

    Attributes:
        forms: one for each layer.
        ranks: one for each layer.
        explanation: how they came to be, for the report.
    """

    forms: list[Form]
    ranks: list[int]
    explanation: dict[str, Any] = field(default_factory=dict)


def choose(config: ConversionConfig, problems: LayerProblems, calibration: Calibration | None = None) -> Choice:
    """Resolves a rank or a budget.

    Args:
        config: with one of `rank`, `params` and `max_error`.
        problems: of the model's attention layers.
        calibration: what their moments are from.

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
    candidates: tuple[Form, ...] = FORMS if config.form == "auto" else (config.fixed_form,)
    found = {form: _ranks(form, config, problems) for form in candidates}
    found = {form: ranks for form, ranks in found.items() if ranks}
    if config.form == "auto":
        found = {form: _fast_ranks(form, ranks, config, problems) for form, ranks in found.items()}
    if not found:
        assert config.params is not None  # R = K has no error
        shapes = [LayerShape.of(problem) for problem in problems.values()]
        raise BudgetError(nothing_fits(config.params, candidates, config.content, shapes))
    if len(found) == 1 and config.form != "auto":
        form, ranks = next(iter(found.items()))
        return Choice([form] * len(ranks), ranks, {"budget": config.budget, "allocation": config.allocation})
    scores = {form: _judge(form, ranks, config, problems) for form, ranks in found.items()}
    form = min(scores, key=lambda one: scores[one]["cost"])
    if config.optimize == "speed":  # of those that are about as fast as each other, the closest to the original
        near = [one for one in scores if scores[one]["cost"] < _AS_FAST * scores[form]["cost"]]
        form = min(near, key=lambda one: scores[one]["error"])
    logger.info("Of %s, %s is the best choice.", ", ".join(found), form)
    slower = [str(length) for length, ratio in scores[form]["faster"].items() if ratio < 1]
    if config.optimize == "speed" and slower:
        logger.warning("No form within the budget is as fast as the original with %s tokens.", ", ".join(slower))
    return Choice(
        [form] * len(problems),
        found[form],
        {
            "budget": config.budget,
            "allocation": config.allocation,
            "optimize": config.optimize,
            "candidates": scores,
            "chosen": form,
        },
    )


def _ranks(form: Form, config: ConversionConfig, problems: Mapping[str, LayerProblem]) -> list[int]:
    """The ranks of one form within the budget; none if it cannot be met."""
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
    form: Form, ranks: list[int], config: ConversionConfig, problems: Mapping[str, LayerProblem]
) -> list[int]:
    """The same within a budget of parameters, but where speed is the aim in widths that cost no speed.

    The fused kernel takes heads of d dimensions (`collab.modeling.collab_kernel`), and heads of equal widths need no
    padding.
    """
    if config.optimize != "speed" or config.params is None:
        return ranks
    tensors = (problem.tensor for problem in problems.values())
    if form == "concat":
        pairs = zip(ranks, tensors, strict=True)
        return [max(rank - rank % one.num_heads, min(rank, one.num_heads)) for rank, one in pairs]
    return [min(rank, one.head_dim) for rank, one in zip(ranks, tensors, strict=True)]


def _smallest_rank(form: Form, error: float, config: ConversionConfig, problem: LayerProblem) -> int:
    """The smallest rank whose error is at most `error`; R = K always has none.

    Solving in full takes long, so predictions say where to look: first as they are, then scaled by how far off the
    first one was.
    """
    full_rank, solver = problem.tensor.full_rank, config.solver_options

    @cache
    def predicted(rank: int) -> float:
        return predict(problem, form, rank, config.content, solver)

    @cache
    def solved(rank: int) -> float:
        return 0.0 if rank == full_rank else solve_error(problem, form, rank, config.content, solver, config.seed)

    rank = _first(0, full_rank, lambda middle: predicted(middle) <= error)
    if form == "concat":  # in closed form, so that is what it comes to
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
    """The smallest rank above `fails` that is within a budget, by bisection; `fits` is within it."""
    while fits - fails > 1:
        middle = (fails + fits) // 2
        fails, fits = (fails, middle) if within(middle) else (middle, fits)
    return fits


def _judge(
    form: Form, ranks: Sequence[int], config: ConversionConfig, problems: Mapping[str, LayerProblem]
) -> dict[str, Any]:
    """What a form costs at its ranks; `cost` is what is to be low."""
    parameters = 0
    errors = []
    before, after = dict.fromkeys(LENGTHS, 0.0), dict.fromkeys(LENGTHS, 0.0)
    for problem, rank in zip(problems.values(), ranks, strict=True):
        shape = LayerShape.of(problem)
        parameters += shape.parameters(form, rank, config.content)
        for length in LENGTHS:
            before[length] += shape.time_before(length)
            after[length] += shape.time(form, rank, config.content, length)
        errors.append(predict(problem, form, rank, config.content, config.solver_options))
    error = together(errors)
    faster = {length: before[length] / after[length] for length in LENGTHS}
    if config.optimize == "speed":
        cost: float = sum(1 / ratio for ratio in faster.values()) / len(faster)
    else:
        cost = error if config.params is not None else parameters
    return {"ranks": list(ranks), "parameters": parameters, "faster": faster, "error": error, "cost": cost}


def nothing_fits(params: float, forms: Sequence[Form], content: Content, shapes: Sequence[LayerShape]) -> str:
    """Says that no rank fits a part of the query/key parameters, and what the nearest part is that one fits."""
    least = min(max(shape.parameters(form, 1, content) / shape.parameters_before for shape in shapes) for form in forms)
    return (
        f"No rank fits {params:g} of the query/key parameters: at rank 1 a layer takes {least:.4f} of them "
        f"already. Give --params {math.ceil(least * 1e4) / 1e4:g} or more."
    )


def compare_forms(problem: LayerProblem, parameters: int, config: ConversionConfig) -> dict[str, Any]:
    """What each form would have given a layer with as many parameters: its rank and predicted error.

    Args:
        problem: of the attention layer.
        parameters: query/key parameters of the converted layer.
        config: of the conversion.
    """
    row: dict[str, Any] = {}
    for form in FORMS:
        rank = LayerShape.of(problem).rank_within(form, parameters, config.content)
        error = predict(problem, form, rank, config.content, config.solver_options) if rank else None
        row[form] = {"rank": rank, "error": error}
    return row
