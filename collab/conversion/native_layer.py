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

With rotary positions a native head has one complex dimension for every frequency. Its best one is the first singular
pair of Â_{fh} = A_f G_{fh} B_f^H, of the heads that share a key together; exact if that has rank one, as it always has
in the ``concat`` form, and in the ``tucker`` form until it is trained: there G_{fh} = (A_f^H w_q)(B_f^H w_k)^H. Biases
are a row of both sides, so b_K is not zero.

Nor is it where queries are also positions (DeBERTa): W_Q^h b_K^h is their content e_h. So a one is appended to the key
too, and the matrix is [Â_h e_h; c_hᵀ x]. The softmax does not see x, which is chosen to leave the rank lowest.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..decomposition import Factors, RotaryFactors
from ..decomposition.rotary_factors import as_real


@dataclass(frozen=True)
class NativeLayer:
    """Native projections, in float64 on the CPU.

    Attributes:
        query: W_Qᵀ as `torch.nn.Linear` stores it, (K, D_q), the heads' rows one after the other.
        query_bias: b_Q, (K,).
        key: W_Kᵀ, (K, D_k), or fewer rows if several heads share a key.
        key_bias: b_K, as long as `key`.
        head_ranks: for each head, the rank of its [Â_h; c_hᵀ], up to rounding; with rotary positions, the largest of
            its Â_{fh}, or of those of all heads that share its key.
        most: the largest rank that a native head can have: d, or 1 with rotary positions.
        error: relative error ‖S - Ŝ‖/‖S‖ of the matrices S_h = [Â_h; c_hᵀ], with e_h if there is one, or of
            Â_{fh}, of all heads together.
    """

    query: Tensor
    query_bias: Tensor
    key: Tensor
    key_bias: Tensor
    head_ranks: tuple[int, ...]
    most: int
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
    content, position = factors.content, factors.position_content
    queries, biases, keys, key_biases, ranks = [], [], [], [], []
    lost = total = 0.0
    for h in range(factors.num_heads):
        left, right = factors.sides(h)  # (D_q, r), (D_k, r)
        corner = left.new_zeros(1)
        if content is not None and position is not None:
            on_query = torch.linalg.pinv(left, rtol=tolerance) @ position[h]  # (r,)
            corner[0] = on_query @ (torch.linalg.pinv(right, rtol=tolerance) @ content[h])
        if content is not None:
            left, right = _with_row(left, right, content[h])  # (D_q+1, r+1), (D_k, r+1)
        if position is not None:
            column = torch.cat([position[h], corner[: len(left) - len(position[h])]])
            right, left = _with_row(right, left, column)  # (D_k+1, r+2), (D_q+1, r+2)
        left_basis, left_triangle = torch.linalg.qr(left)
        right_basis, right_triangle = torch.linalg.qr(right)
        u, values, vt = torch.linalg.svd(left_triangle @ right_triangle.mT, full_matrices=False)
        kept = min(head_dim, len(values))
        scale, missing = values[:kept].sqrt(), (0, head_dim - kept)
        left = pad(left_basis @ (u[:, :kept] * scale), missing)  # (D_q or D_q+1, d)
        right = pad(right_basis @ (vt.mT[:, :kept] * scale), missing)  # (D_k or D_k+1, d)
        queries.append(left[: factors.query.shape[0]].T)  # (d, D_q)
        biases.append(left[-1] if content is not None else left.new_zeros(head_dim))  # (d,)
        keys.append(right[: factors.key.shape[0]].T)  # (d, D_k)
        key_biases.append(right[-1] if position is not None else right.new_zeros(head_dim))  # (d,)
        ranks.append(int((values > tolerance * values[:1]).sum()))
        unseen = left[-1] @ right[-1] - corner[0] if corner.any() else corner[0]
        lost += float(values[kept:].square().sum() - unseen.square())
        total += float(values.square().sum() - corner.square().sum())
    return NativeLayer(
        torch.cat(queries).contiguous(),
        torch.cat(biases).contiguous(),
        torch.cat(keys).contiguous(),
        torch.cat(key_biases).contiguous(),
        tuple(ranks),
        head_dim,
        max(lost / total, 0.0) ** 0.5 if total else 0.0,
    )


def native_rotary_layer(factors: RotaryFactors, head_dim: int, key_heads: int) -> NativeLayer:
    """The nearest native layer with rotary positions.

    Args:
        factors: the factors of a collaborative layer.
        head_dim: d.
        key_heads: number of the native layer's keys, each of them for H / `key_heads` heads.

    Returns:
        Native projections and their error.
    """
    tolerance = rounding(factors.query.dtype)
    precise = factors.to(torch.empty((), dtype=torch.float64, device="cpu"))
    assert isinstance(precise, RotaryFactors)
    factors, heads, width = precise, precise.num_heads, precise.query.shape[0]
    queries = torch.zeros(width, heads, head_dim // 2, dtype=torch.complex128)  # (D, H, F)
    keys = torch.zeros(width, key_heads, head_dim // 2, dtype=torch.complex128)
    ranks = [0] * heads
    lost = total = 0.0
    for frequency in dict.fromkeys(factors.frequencies):
        left, cores, right = factors.block(frequency)
        right_basis, right_triangle = torch.linalg.qr(right)
        for group, own in enumerate(torch.arange(heads).chunk(key_heads)):
            stacked = (left @ cores[own]).flatten(0, 1)  # (heads of the group · D, r)
            left_basis, left_triangle = torch.linalg.qr(stacked)
            u, values, vh = torch.linalg.svd(left_triangle @ right_triangle.mH)
            scale = values[0].sqrt()
            query = (left_basis @ (u[:, 0] * scale)).unflatten(0, (-1, width))  # (heads of the group, D)
            queries[:, own, frequency] = query.mT
            keys[:, group, frequency] = right_basis @ (vh[0].conj() * scale)
            rank = int((values > tolerance * values[:1]).sum())
            for head in own.tolist():
                ranks[head] = max(ranks[head], rank)
            lost += float(values[1:].square().sum())
            total += float(values.square().sum())
    rows = [as_real(side).flatten(1).T for side in (queries, keys)]  # (K, D)
    biases = [side[:, -1] if factors.biased else side.new_zeros(len(side)) for side in rows]
    query, key = (side[:, :-1] if factors.biased else side for side in rows)
    error = (lost / total) ** 0.5 if total else 0.0
    return NativeLayer(query.contiguous(), biases[0], key.contiguous(), biases[1], tuple(ranks), 1, error)


def without_heads(width: int, most: int) -> NativeLayer:
    """The native layer of a layer whose heads were all pruned: no rows. `most` is as in `NativeLayer`."""
    nothing = torch.zeros(0, width, dtype=torch.float64)  # (0, D)
    return NativeLayer(nothing, nothing[:, 0], nothing, nothing[:, 0], (0,), most, 0.0)


def rounding(dtype: torch.dtype) -> float:
    """A bound on the relative error of storing weights in a dtype."""
    return 2 * torch.finfo(dtype).eps


def _with_row(one: Tensor, other: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
    """The factors of a product with one more row: (D_1, r) and (D_2, r) → (D_1+1, r+1) and (D_2, r+1)."""
    one = pad(one, (0, 1, 0, 1))
    one[-1, -1] = 1
    return one, torch.cat([other, row.unsqueeze(1)], dim=1)
