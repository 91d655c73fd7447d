"""Expands one collaborative layer to native query and key projections, with d separate dimensions for each head.

A native head scores x W_Q^h W_K^hᵀ yᵀ + y·W_K^h b_Q^h, so context and content share one key subspace of at most d
dimensions. With a one appended to the query, both are one matrix,

    [x 1] [Â_h; c_hᵀ] yᵀ,    [Â_h; c_hᵀ] ≈ [W_Q^h; b_Q^hᵀ] W_K^hᵀ    (D_q+1)×D_k of rank at most d,

and the best rank-d factors of that matrix, by its singular values, give W_Q^h, b_Q^h and W_K^h at once. They are exact
whenever the matrix has rank d or less. The content row counts as it stands: as one more coordinate of a query input of
unit variance, which is about what the layer normalization before an attention layer gives. This is also how folded
content is weighted in a conversion without calibration.

The matrix is never formed. Â_h = (W̃_Q G_h) W̃_Kᵀ, so it is a product of a (D_q+1)×(r+1) and an (r+1)×D_k matrix, and
after QR of both a small SVD is left. b_K stays zero, because the softmax does not see it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..decomposition import Factors


@dataclass(frozen=True)
class NativeLayer:
    """Native projections, in float64 on the CPU.

    Attributes:
        query: W_Qᵀ as `torch.nn.Linear` stores it, (K, D_q), the heads' rows one after the other.
        query_bias: b_Q, (K,).
        key: W_Kᵀ, (K, D_k).
        head_ranks: for each head, the rank of its [Â_h; c_hᵀ], up to rounding.
        error: relative error ‖S - Ŝ‖/‖S‖ of the matrices S_h = [Â_h; c_hᵀ] of all heads together.
    """

    query: Tensor
    query_bias: Tensor
    key: Tensor
    head_ranks: tuple[int, ...]
    error: float


def native_layer(factors: Factors, head_dim: int) -> NativeLayer:
    """The nearest native layer.

    Args:
        factors: the factors of a collaborative layer.
        head_dim: d.

    Returns:
        Native projections and their error.
    """
    tolerance = rounding(factors.query.dtype)
    factors = factors.to(torch.empty((), dtype=torch.float64, device="cpu"))
    content = factors.content
    queries, biases, keys, ranks = [], [], [], []
    lost = total = 0.0
    for h in range(factors.num_heads):
        left, right = _head(factors, h)  # (D_q, r), (D_k, r)
        if content is not None:
            left = pad(left, (0, 1, 0, 1))  # (D_q+1, r+1)
            left[-1, -1] = 1
            right = torch.cat([right, content[h].unsqueeze(1)], dim=1)  # (D_k, r+1)
        left_basis, left_triangle = torch.linalg.qr(left)
        right_basis, right_triangle = torch.linalg.qr(right)
        u, values, vt = torch.linalg.svd(left_triangle @ right_triangle.mT, full_matrices=False)
        kept = min(head_dim, len(values))
        scale, missing = values[:kept].sqrt(), (0, head_dim - kept)
        left = pad(left_basis @ (u[:, :kept] * scale), missing)  # (D_q or D_q+1, d)
        queries.append(left[: factors.query.shape[0]].T)  # (d, D_q)
        biases.append(left[-1] if content is not None else left.new_zeros(head_dim))  # (d,)
        keys.append(pad(right_basis @ (vt.mT[:, :kept] * scale), missing).T)  # (d, D_k)
        ranks.append(int((values > tolerance * values[:1]).sum()))
        lost += float(values[kept:].square().sum())
        total += float(values.square().sum())
    return NativeLayer(
        torch.cat(queries).contiguous(),
        torch.cat(biases).contiguous(),
        torch.cat(keys).contiguous(),
        tuple(ranks),
        (lost / total) ** 0.5 if total else 0.0,
    )


def without_heads(width: int) -> NativeLayer:
    """The native layer of a layer whose heads were all pruned: no rows."""
    nothing = torch.zeros(0, width, dtype=torch.float64)  # (0, D)
    return NativeLayer(nothing, nothing[:, 0], nothing, (0,), 0.0)


def rounding(dtype: torch.dtype) -> float:
    """A bound on the relative error of storing weights in a dtype."""
    return 2 * torch.finfo(dtype).eps


def _head(factors: Factors, h: int) -> tuple[Tensor, Tensor]:
    """Â_h as the product of a (D_q, r) and the transpose of a (D_k, r) matrix, of the dimensions that the head uses."""
    mixing = factors.mixing[h]
    if factors.form == "tucker":
        rows, columns = (mixing != 0).any(dim=1), (mixing != 0).any(dim=0)
        return factors.query[:, rows] @ mixing[rows][:, columns], factors.key[:, columns]
    used = mixing != 0  # (R,)
    return factors.query[:, used] * mixing[used], factors.key[:, used]
