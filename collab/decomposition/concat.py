"""The concatenated form: the best one-hot mixing, in closed form.

With a one-hot M every shared dimension serves one head, so head h is approximated by a matrix of rank r_h and the ranks
add up to R. By Eckart-Young the best choice keeps the R largest singular values over all A_h. The singular values need
only d×d matrices: with QR factorizations W_Q^h = P L and W_K^h = Q N, A_h = P (L Nᵀ) Qᵀ. This is the per-head SVD of
CLOVER (arXiv 2411.17426) and A³ (arXiv 2505.12942), the dimensions divided among the heads by their singular values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor
from torch.nn.functional import one_hot, pad

from .factors import DiagonalFactors, balanced, tail
from .head_tensor import HeadTensor
from .rotary_factors import RotaryFactors, by_frequency, dimensions, pair_energy


class Concat(DiagonalFactors):
    """Every shared dimension belongs to one head: M is one-hot, the heads in order."""

    form = "concat"
    sharing = "each belongs to a single head"
    separate = closed = True

    @classmethod
    def decay(cls, tensor: HeadTensor) -> Tensor:
        return tail(_spectra(tensor).flatten().square().sort(descending=True).values)

    @classmethod
    def head_decay(cls, tensor: HeadTensor) -> Tensor:
        """Relative squared error if each head keeps so many of its dimensions, from none to all, (d + 1,)."""
        return _beyond(_spectra(tensor).square().sum(dim=0))

    def head(self, h: int) -> Tensor:
        query, key = self.sides(h)
        return query @ key.T

    def canonical(self) -> Self:
        """‖a_r‖ = ‖b_r‖."""
        query, key, _ = balanced(self.query, self.key)
        return self.of_heads(query.contiguous(), key.contiguous(), self.mixing.contiguous())


class RotaryConcat(RotaryFactors, Concat):
    """``concat`` with rotary positions; the one-hot head of a dimension stands in both of its columns of M."""

    def cores_at(self, frequency: int) -> Tensor:
        owner = self.mixing[:, self.places(frequency)]  # (H, r_f)
        return torch.diag_embed(owner.to(owner.dtype.to_complex()))

    @classmethod
    def owned(cls, owner: Tensor, frequencies: Sequence[int]) -> Tensor:
        return owner.repeat(1, 2)  # in the order of the heads

    def canonical(self) -> Self:
        """‖a_r‖ = ‖b_r‖."""
        return self.of_heads(*self.balanced_pairs(), self.mixing)

    @classmethod
    def decay(cls, tensor: HeadTensor) -> Tensor:
        return tail(dimensions(pair_energy(*by_frequency(tensor))))

    @classmethod
    def head_decay(cls, tensor: HeadTensor) -> Tensor:
        """The same as without positions, but dimensions are kept in pairs."""
        energy = pair_energy(*by_frequency(tensor)).sort(dim=0, descending=True).values.sum(dim=1)  # (F,)
        return _beyond(energy)[torch.arange(tensor.head_dim + 1, device=energy.device) // 2]


def head_spectrum(tensor: HeadTensor, h: int) -> tuple[Tensor, Tensor, Tensor]:
    """Singular value decomposition of A_h.

    Returns:
        Left vectors (D_q, d), singular values (d,) in falling order and right vectors (D_k, d), padded with zeros where
        an input is narrower than a head.
    """
    columns = slice(h * tensor.head_dim, (h + 1) * tensor.head_dim)
    query_basis, query_triangle = torch.linalg.qr(tensor.query[:, columns])
    key_basis, key_triangle = torch.linalg.qr(tensor.key[:, columns])
    left, values, right = torch.linalg.svd(query_triangle @ key_triangle.mT, full_matrices=False)
    missing = (0, tensor.head_dim - len(values))
    return pad(query_basis @ left, missing), pad(values, missing), pad(key_basis @ right.mT, missing)


def _spectra(tensor: HeadTensor) -> Tensor:
    """Singular values of all heads, (H, d)."""
    return torch.stack([head_spectrum(tensor, h)[1] for h in range(tensor.num_heads)])


def decompose_concat(tensor: HeadTensor, rank: int, even: bool = False) -> Concat:
    """The best ``concat`` factors with `rank` shared dimensions, in closed form.

    Args:
        tensor: 𝒯.
        rank: R.
        even: whether every head gets the same number of dimensions, up to one.
    """
    spectra = [head_spectrum(tensor, h) for h in range(tensor.num_heads)]
    values = torch.stack([values for _, values, _ in spectra])  # (H, d)
    chosen = values
    if even:  # the heads' largest values first, then their second largest, …
        chosen = values / values.amax().clamp(min=torch.finfo(values.dtype).tiny) - 2 * torch.arange(
            values.shape[1], dtype=values.dtype, device=values.device
        )
    kept = torch.zeros_like(values.flatten(), dtype=torch.bool)
    kept[chosen.flatten().topk(rank).indices] = True
    kept = kept.view_as(values)  # (H, d)
    scale = values[kept].sqrt()  # (R,) by head, then by singular value
    return Concat(
        query=torch.cat([left[:, mine] for (left, _, _), mine in zip(spectra, kept, strict=True)], dim=1) * scale,
        key=torch.cat([right[:, mine] for (_, _, right), mine in zip(spectra, kept, strict=True)], dim=1) * scale,
        mixing=one_hot(kept.nonzero()[:, 0], tensor.num_heads).T.contiguous().to(tensor.query),
    )


def _beyond(energy: Tensor) -> Tensor:
    """The part of the energy beyond each number of leading terms, (d + 1,)."""
    left = torch.cat([energy.flip(0).cumsum(0).flip(0), energy.new_zeros(1)])
    return left / left[0].clamp(min=torch.finfo(left.dtype).tiny)
