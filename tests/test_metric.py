"""Solving in the metric of the scores: the algebra against dense sums."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import every_form
from torch import Tensor

import collab
from collab.decomposition import FORMS, HeadTensor, Metric, SolverOptions, Whitening, decay, decompose
from collab.reparametrization.layer import LayerProblem
from collab.reparametrization.moments import LayerMoments

HEADS, HEAD_DIM = 3, 4
FULL = HEADS * HEAD_DIM


def covariance(width: int, rank: int | None = None) -> Tensor:
    rows = torch.randn(rank or 3 * width, width, dtype=torch.float64) * torch.linspace(0.1, 2, width)
    return rows.T @ rows / len(rows)


def moments(query_width: int = 10, key_width: int = 10, rank: int | None = None) -> LayerMoments:
    return LayerMoments(
        query_mean=torch.randn(HEADS, query_width, dtype=torch.float64),
        query_covariance=covariance(query_width, rank),
        key_covariance=covariance(key_width, rank),
        head_weight=torch.rand(HEADS, dtype=torch.float64) + 0.1,
        tokens=1000,
    )


def weights(query_width: int = 10, key_width: int = 10) -> tuple[Tensor, Tensor, Tensor]:
    return (
        torch.randn(FULL, query_width, dtype=torch.float64),
        torch.randn(FULL, dtype=torch.float64),
        torch.randn(FULL, key_width, dtype=torch.float64),
    )


def problem(query_width: int = 10, key_width: int = 10, rank: int | None = None) -> LayerProblem:
    query, bias, key = weights(query_width, key_width)
    return LayerProblem.of(query, bias, key, None, HEADS, torch.device("cpu"), moments(query_width, key_width, rank))


@settings(deadline=None, max_examples=25)
@given(
    widths=st.tuples(st.integers(3, 14), st.integers(3, 14)),
    fraction=st.floats(0.1, 1.0),
    form=st.sampled_from(FORMS),
    seed=st.integers(0, 100),
)
def test_whitening_is_undone(widths: tuple[int, int], fraction: float, form: str, seed: int) -> None:
    """The error in the metric is the plain error of what was solved, and a head is the head it was."""
    torch.manual_seed(seed)
    tensor = HeadTensor(*(torch.randn(width, FULL, dtype=torch.float64) for width in widths), HEADS)
    metric = Metric(*(covariance(width) for width in widths), torch.rand(HEADS, dtype=torch.float64) + 0.1)
    whitening = Whitening(metric, damping=0.0)
    solved = decompose(whitening.whiten(tensor), form, max(1, round(fraction * FULL)), SolverOptions(max_sweeps=5))
    factors = whitening.unwhiten(solved.factors)
    assert metric.relative_error(tensor, factors) == pytest.approx(solved.error, rel=1e-5, abs=1e-7)
    dense = [
        metric.head_weight[h]
        * torch.trace(metric.query_covariance @ tensor.head(h) @ metric.key_covariance @ tensor.head(h).T)
        for h in range(HEADS)
    ]
    assert metric.norm_squared(tensor) == pytest.approx(float(sum(dense)), rel=1e-9)


@every_form
def test_scores_are_closer_on_what_was_seen(form: str) -> None:
    task = problem()
    seen = task.solve(form, 6, "exact", SolverOptions())
    blind = LayerProblem(task.tensor, task.query_bias, None).solve(form, 6, "exact", SolverOptions())
    assert seen.score_error < task.score_error(blind.factors, task.moments)
    assert seen.error > blind.error * 0.99


@every_form
@pytest.mark.parametrize("content", ["exact", "folded"])
def test_score_error_is_that_of_sampled_scores(form: str, content: str) -> None:
    """Drawing queries and keys with these moments, and comparing the scores themselves."""
    task = problem()
    solved = task.solve(form, 6, content, SolverOptions())
    query, key = map(torch.linalg.cholesky, (task.moments.query_covariance, task.moments.key_covariance))
    keys = torch.randn(4000, 10, dtype=torch.float64) @ key.T
    bias = task.query_bias.view(HEADS, HEAD_DIM)
    error = whole = 0.0
    for h in range(HEADS):
        x = task.moments.query_mean[h] + torch.randn(4000, 10, dtype=torch.float64) @ query.T
        columns = slice(h * HEAD_DIM, (h + 1) * HEAD_DIM)
        projected = keys @ task.tensor.key[:, columns]
        exact = ((x @ task.tensor.query[:, columns] + bias[h]) * projected).sum(1)
        approximate = ((x @ solved.factors.head(h) + solved.factors.content[h]) * keys).sum(1)
        centred = ((x - task.moments.query_mean[h]) @ task.tensor.head(h) * keys).sum(1)
        error += float(task.moments.head_weight[h] * (exact - approximate).square().mean())
        whole += float(task.moments.head_weight[h] * centred.square().mean())
    assert (error / whole) ** 0.5 == pytest.approx(solved.score_error, rel=0.06)


@every_form
def test_exact_content_is_exact_at_the_mean_query(form: str) -> None:
    task = problem()
    solved = task.solve(form, 5, "exact", SolverOptions())
    for h, mean in enumerate(task.moments.query_mean):
        columns = slice(h * HEAD_DIM, (h + 1) * HEAD_DIM)
        query = mean @ task.tensor.query[:, columns] + task.query_bias[columns]
        torch.testing.assert_close(
            mean @ solved.factors.head(h) + solved.factors.content[h], query @ task.tensor.key[:, columns].T
        )


@every_form
@pytest.mark.parametrize("calibrated", [True, False])
def test_folded_content(form: str, calibrated: bool) -> None:
    """At full rank it is exact; below, it stores less and costs something."""
    task = problem()
    task = task if calibrated else LayerProblem(task.tensor, task.query_bias, None)
    full = task.solve(form, FULL, "folded", SolverOptions())
    assert full.factors.content_bias is None
    expected = task.solve(form, FULL, "exact", SolverOptions()).factors.content
    torch.testing.assert_close(full.factors.content, expected)
    folded, exact = (task.solve(form, 6, content, SolverOptions()) for content in ("folded", "exact"))
    assert folded.factors.query_offset.shape == ((1, 6) if form == "concat" else (HEADS, 6))
    if calibrated:
        assert exact.score_error < folded.score_error < 3 * exact.score_error


@every_form
def test_deficient_moments(form: str) -> None:
    """Covariances of rank 2: what was not seen is kept as far as the rank allows, and nothing blows up."""
    task = problem(rank=2)
    solved = task.solve(form, 8, "exact", SolverOptions())
    assert solved.score_error < 0.1
    assert solved.error < 2
    assert all(part.isfinite().all() for part in (solved.factors.query, solved.factors.key, solved.factors.mixing))


def test_a_head_that_does_not_matter() -> None:
    task = problem()
    task.moments.head_weight[1] = 0
    for form in FORMS:
        solved = task.solve(form, 6, "exact", SolverOptions())
        assert solved.factors.query.isfinite().all()
        assert solved.score_error < 1


def test_by_reparametrize_and_its_shapes() -> None:
    query, bias, key = weights(10, 7)
    given = moments(10, 7)
    result = collab.reparametrize(query, bias, key, num_heads=HEADS, rank=5, moments=given, content="folded")
    assert result.score_error < 1
    x, y = torch.randn(1, 4, 10, dtype=torch.float64), torch.randn(1, 6, 7, dtype=torch.float64)
    assert result.scores(x, y).shape == (1, HEADS, 4, 6)
    with pytest.raises(collab.errors.ShapeError, match="moments are of 3 heads"):
        collab.reparametrize(query, bias, key, num_heads=HEADS, rank=5, moments=moments(7, 7))
    with pytest.raises(collab.errors.ConfigurationError, match="exact, folded"):
        collab.reparametrize(query, bias, key, num_heads=HEADS, rank=5, content="absorbed")


@every_form
def test_decay_bounds_the_error_at_every_rank(form: str) -> None:
    tensor = problem(9, 14).tensor
    curve = decay(tensor, form)
    assert len(curve) == FULL + 1
    assert curve[0] == pytest.approx(1)
    assert (curve.diff() <= 1e-12).all()
    for rank in (2, 5, 9, FULL):
        error = decompose(tensor, form, rank).error
        if form == "tucker":
            assert error**2 >= float(curve[rank]) - 1e-9
        else:
            assert error**2 <= float(curve[rank]) + 1e-9
        if form == "concat":
            assert error**2 == pytest.approx(float(curve[rank]), abs=1e-9)
