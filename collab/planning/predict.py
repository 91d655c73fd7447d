"""Predicted errors of a conversion."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache

import torch

from ..decomposition import FormName, SolverOptions, form_named
from ..decomposition.options import Content
from ..reparametrization.layer import LayerProblem


def predict(problem: LayerProblem, form: FormName, rank: int, content: Content, solver: SolverOptions) -> float:
    """Predicts the relative error of a layer's conversion: of the scores, or of the weights without moments.

    Runs a few sweeps of the solver from its closed-form start; the full solve ends at most a few percent lower.
    """
    sweeps = min(form_named(form).prediction_sweeps, solver.max_sweeps)
    quick = replace(solver, method="structured", max_sweeps=sweeps)
    return solve_error(problem, form, rank, content, quick)


def solve_error(
    problem: LayerProblem, form: FormName, rank: int, content: Content, solver: SolverOptions, seed: int = 0
) -> float:
    """The relative error of a layer's conversion by a full solve. Arguments as in `predict`."""
    with torch.no_grad():
        solved = problem.solve(form, rank, content, solver, seed)
    return solved.error if solved.score_error is None else solved.score_error


def smallest_rank(
    problem: LayerProblem, form: FormName, error: float, content: Content, solver: SolverOptions, seed: int = 0
) -> int:
    """The smallest rank whose error is at most `error`; at R = K the error is 0.

    Full solves are slow, so predictions narrow the search: first as they are, then scaled by the ratio of the first
    solve to its prediction.
    """
    full_rank = problem.tensor.full_rank

    @cache
    def predicted(rank: int) -> float:
        return predict(problem, form, rank, content, solver)

    @cache
    def solved(rank: int) -> float:
        return 0.0 if rank == full_rank else solve_error(problem, form, rank, content, solver, seed)

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


def root_mean_square(errors: Sequence[float]) -> float:
    """The root mean square of the layers' relative errors, which balanced ranks minimize."""
    return math.sqrt(sum(error**2 for error in errors) / len(errors))
