"""The factored head tensor against the dense one."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from collab.decomposition import FORMS, Factors, HeadTensor, form_named, full_rank_factors
from collab.errors import ShapeError


@st.composite
def head_tensors(draw: st.DrawFn) -> HeadTensor:
    """Any H and d, and inputs narrower and wider than K, of equal or different width."""
    heads, head_dim = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    query_width, key_width = draw(st.integers(1, 12)), draw(st.integers(1, 12))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10_000)))
    dtype = draw(st.sampled_from([torch.float32, torch.float64]))
    return HeadTensor(
        torch.randn(query_width, heads * head_dim, generator=generator, dtype=dtype),
        torch.randn(key_width, heads * head_dim, generator=generator, dtype=dtype),
        heads,
    )


def random_factors(tensor: HeadTensor, form: str, rank: int = 3) -> Factors:
    query_width, heads, key_width = tensor.shape
    shape = (heads, rank, rank) if form == "tucker" else (heads, rank)
    return form_named(form)(
        query=torch.randn(query_width, rank, dtype=tensor.query.dtype),
        key=torch.randn(key_width, rank, dtype=tensor.query.dtype),
        mixing=torch.randn(shape, dtype=tensor.query.dtype),
    )


def close(actual: object, expected: torch.Tensor | float, dtype: torch.dtype) -> None:
    expected = torch.as_tensor(expected, dtype=dtype)
    tolerance = 1e-3 if dtype == torch.float32 else 1e-10
    torch.testing.assert_close(torch.as_tensor(actual, dtype=dtype), expected, rtol=tolerance, atol=tolerance)


@given(head_tensors())
@settings(max_examples=60, deadline=None)
def test_matches_the_dense_tensor(tensor: HeadTensor) -> None:
    dense = tensor.dense()
    dtype = dense.dtype
    assert dense.shape == tensor.shape
    for h in range(tensor.num_heads):
        close(tensor.head(h), dense[:, h], dtype)
    close(tensor.norm_squared(), dense.square().sum(), dtype)

    factors = random_factors(tensor, "cp")
    projected_query, projected_key = tensor.project_query(factors.query), tensor.project_key(factors.key)
    a, m, b = factors.query, factors.mixing, factors.key
    close(tensor.mttkrp_query(m, projected_key), torch.einsum("qhk,hr,kr->qr", dense, m, b), dtype)
    close(tensor.mttkrp_key(m, projected_query), torch.einsum("qhk,qr,hr->kr", dense, a, m), dtype)
    close(tensor.mttkrp_heads(projected_query, projected_key), torch.einsum("qhk,qr,kr->hr", dense, a, b), dtype)
    close(tensor.cores(projected_query, projected_key), torch.einsum("qhk,qr,ks->hrs", dense, a, b), dtype)


@pytest.mark.parametrize("form", ["cp", "tucker"])
@given(tensor=head_tensors())
@settings(max_examples=30, deadline=None)
def test_inner_product_and_residual(tensor: HeadTensor, form: str) -> None:
    factors = random_factors(tensor, form)
    dense = tensor.dense()
    approximation = torch.stack([factors.head(h) for h in range(tensor.num_heads)], dim=1)
    close(factors.inner(tensor), (dense * approximation).sum(), dense.dtype)
    close(factors.residual(tensor, 0), (dense - approximation)[:, 0], dense.dtype)
    close(factors.relative_error(tensor), (dense - approximation).norm() / dense.norm(), dense.dtype)


@given(head_tensors())
@settings(max_examples=30, deadline=None)
def test_compressing_keeps_the_tensor(tensor: HeadTensor) -> None:
    small, query_basis, key_basis = tensor.compress()
    query = small.query if query_basis is None else query_basis @ small.query
    key = small.key if key_basis is None else key_basis @ small.key
    close(query, tensor.query, tensor.query.dtype)
    close(key, tensor.key, tensor.query.dtype)
    assert max(small.shape[0], small.shape[2]) <= max(tensor.full_rank, min(tensor.shape[0], tensor.shape[2]))
    close(small.norm_squared(), tensor.norm_squared(), tensor.query.dtype)


@given(head_tensors(), st.sampled_from(FORMS))
@settings(max_examples=30, deadline=None)
def test_full_rank_factors_are_the_tensor_itself(tensor: HeadTensor, form: str) -> None:
    factors = full_rank_factors(tensor, form, tensor.full_rank)
    assert factors.relative_error(tensor) < (1e-6 if tensor.query.dtype == torch.float32 else 1e-14)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_on_cuda() -> None:
    tensor = HeadTensor(torch.randn(8, 12).cuda(), torch.randn(9, 12).cuda(), 3)
    assert tensor.norm_squared() == pytest.approx(float(tensor.dense().square().sum()), rel=1e-4)


@pytest.mark.parametrize(
    ("query", "key", "heads", "message"),
    [
        (torch.zeros(4), torch.zeros(4, 4), 2, "matrices"),
        (torch.zeros(4, 4), torch.zeros(4, 6), 2, "same number of dimensions"),
        (torch.zeros(4, 6), torch.zeros(4, 6), 4, "divided among 4 heads"),
        (torch.zeros(4, 6), torch.zeros(4, 6), 0, "divided among 0 heads"),
        (torch.zeros(4, 6), torch.zeros(4, 6, dtype=torch.float64), 2, "same dtype"),
    ],
)
def test_bad_shapes(query: torch.Tensor, key: torch.Tensor, heads: int, message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        HeadTensor(query, key, heads)
