"""Predicted errors of a conversion."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

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


def root_mean_square(errors: Sequence[float]) -> float:
    """The root mean square of the layers' relative errors, which balanced ranks minimize."""
    return math.sqrt(sum(error**2 for error in errors) / len(errors))
