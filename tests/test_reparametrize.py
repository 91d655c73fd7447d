"""One layer's tensors against the formula of multi-head attention."""

from __future__ import annotations

import pytest
import torch
from tiny import every_form
from torch import Tensor

import collab
from collab.reparametrization.layer import LayerProblem

HEADS, HEAD_DIM = 3, 4
FULL = HEADS * HEAD_DIM


def layer(query_width: int = 10, key_width: int = 10, biases: bool = True, dtype: torch.dtype = torch.float64) -> tuple:
    weights = torch.randn(FULL, query_width, dtype=dtype), torch.randn(FULL, key_width, dtype=dtype)
    query_bias, key_bias = (torch.randn(FULL, dtype=dtype) if biases else None for _ in range(2))
    return weights[0], query_bias, weights[1], key_bias


def attention(
    x: Tensor, y: Tensor, query_weight: Tensor, query_bias: Tensor, key_weight: Tensor, key_bias: Tensor
) -> Tensor:
    """softmax((x W_Q + b_Q)(y W_K + b_K)ᵀ / √d), shape (B, H, T, S)."""
    query = torch.nn.functional.linear(x, query_weight, query_bias).unflatten(-1, (HEADS, HEAD_DIM)).transpose(1, 2)
    key = torch.nn.functional.linear(y, key_weight, key_bias).unflatten(-1, (HEADS, HEAD_DIM)).transpose(1, 2)
    return (query @ key.mT / HEAD_DIM**0.5).softmax(dim=-1)


@every_form
@pytest.mark.parametrize("biases", [True, False])
@pytest.mark.parametrize("widths", [(10, 10), (16, 16), (10, 7)])
def test_exact_at_full_rank(form: str, biases: bool, widths: tuple[int, int]) -> None:
    weights = layer(*widths, biases=biases)
    x, y = torch.randn(2, 5, widths[0], dtype=torch.float64), torch.randn(2, 6, widths[1], dtype=torch.float64)
    result = collab.reparametrize(*weights, num_heads=HEADS, rank=FULL, form=form)
    torch.testing.assert_close(result.scores(x, y).softmax(dim=-1), attention(x, y, *weights), rtol=1e-12, atol=1e-12)
    assert (result.factors.content_bias is None) is not biases


def test_content_bias_is_exact_at_any_rank() -> None:
    """Where the query input is zero only the content bias is left."""
    weights = layer()
    x, y = torch.zeros(1, 2, 10, dtype=torch.float64), torch.randn(1, 6, 10, dtype=torch.float64)
    result = collab.reparametrize(*weights, num_heads=HEADS, rank=2)
    torch.testing.assert_close(result.scores(x, y).softmax(dim=-1), attention(x, y, *weights))


@every_form
def test_folded_content_of_a_head_without_query_weights(form: str) -> None:
    """Such a head sees no query, but its bias attends to keys; one dimension is enough for it."""
    query_weight, query_bias, key_weight, key_bias = layer()
    query_weight[:HEAD_DIM] = 0
    result = collab.reparametrize(
        query_weight, query_bias, key_weight, key_bias, num_heads=HEADS, rank=9, form=form, content="folded"
    )
    expected = query_bias[:HEAD_DIM] @ key_weight[:HEAD_DIM]  # c_0, (D_k,)
    torch.testing.assert_close(result.factors.content[0], expected, rtol=1e-4, atol=1e-4)


def test_scale_is_that_of_the_original_head() -> None:
    weights = layer(biases=False)
    result = collab.reparametrize(*weights, num_heads=HEADS, rank=5)
    x = torch.randn(1, 4, 10, dtype=torch.float64)
    heads = torch.stack([result.factors.head(h) for h in range(HEADS)])
    torch.testing.assert_close(result.scores(x, x), x[:, None] @ heads @ x[:, None].mT / HEAD_DIM**0.5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_keeps_the_dtype(dtype: torch.dtype) -> None:
    factors = collab.reparametrize(*layer(dtype=dtype), num_heads=HEADS, rank=0.5).factors
    assert factors.query.dtype == factors.content_bias.dtype == dtype
    assert factors.rank == 6


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_solves_in_float64(dtype: torch.dtype) -> None:
    query, query_bias, key, _ = layer(dtype=dtype)
    problem = LayerProblem.of(query, query_bias, key, None, HEADS, torch.device("cpu"))
    factors = problem.solve("cp", 6, "exact", collab.SolverOptions()).factors
    assert factors.query.dtype == factors.content_bias.dtype == torch.float64


def test_no_gradients_are_left_behind() -> None:
    query, query_bias, key, key_bias = map(torch.nn.Parameter, layer())
    result = collab.reparametrize(query, query_bias, key, key_bias, num_heads=HEADS, rank=5)
    assert not result.factors.query.requires_grad


class TestBadInput:
    def test_non_finite(self) -> None:
        query, query_bias, key, key_bias = layer()
        key[2, 3] = float("nan")
        with pytest.raises(collab.errors.WeightsError, match="key_weight"):
            collab.reparametrize(query, query_bias, key, key_bias, num_heads=HEADS, rank=4)

    def test_shapes(self) -> None:
        query, query_bias, key, key_bias = layer()
        with pytest.raises(collab.errors.ShapeError, match="5 heads"):
            collab.reparametrize(query, query_bias, key, key_bias, num_heads=5, rank=4)
        with pytest.raises(collab.errors.ShapeError, match="query_bias must have shape"):
            collab.reparametrize(query, query_bias[:-1], key, key_bias, num_heads=HEADS, rank=4)
        with pytest.raises(collab.errors.ShapeError, match="same number of dimensions"):
            collab.reparametrize(query, query_bias, key[:-3], None, num_heads=HEADS, rank=4)

    def test_rank_and_form(self) -> None:
        with pytest.raises(collab.errors.RankError, match="K = 12"):
            collab.reparametrize(*layer(), num_heads=HEADS, rank=13)
        with pytest.raises(collab.errors.ConfigurationError, match="concat, cp, tucker"):
            collab.reparametrize(*layer(), num_heads=HEADS, rank=3, form="parafac")
