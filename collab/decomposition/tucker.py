"""The Tucker form: shared projections and a core per head, by orthogonal iteration on the factored tensor.

With orthonormal W̃_Q and W̃_K the best cores are G_h = W̃_Qᵀ A_h W̃_K, and the error is least when Σ_h ‖G_h‖² is
largest. HOOI (De Lathauwer, De Moor and Vandewalle 2000) alternates: W̃_Q becomes the leading eigenvectors of
Σ_h A_h W̃_K W̃_Kᵀ A_hᵀ, then W̃_K those of Σ_h A_hᵀ W̃_Q W̃_Qᵀ A_h. On the factored tensor the first D×D matrix is
W_Q S W_Qᵀ with a d×d block of S for each head, so no dense A_h is needed. The head mode is not reduced.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from functools import cached_property
from typing import Self

import torch
from torch import Tensor
from torch.nn.functional import pad

from .factors import Factors, Solution, safe, tail
from .head_tensor import HeadTensor
from .options import SolverOptions
from .rotary_factors import (
    RotaryFactors,
    Solved,
    SweptRotary,
    as_complex,
    by_frequency,
    compressed,
    dimensions,
    pair_energy,
)

logger = logging.getLogger(__name__)

_UNEVEN = 1.25  # most entries of rotary cores, relative to the fewest


class Tucker(Factors):
    """A full core for every head: M is (H, R, R)."""

    form = "tucker"
    sharing = "every head combines all of them by its core"
    learning_rate = 0.01

    @classmethod
    def solve(cls, tensor: HeadTensor, rank: int, concat: Factors, options: SolverOptions) -> Solution:
        return decompose_tucker(tensor, rank, concat, options)

    @classmethod
    def decay(cls, tensor: HeadTensor) -> Tensor:
        sides = (tensor.query, tensor.key), (tensor.key, tensor.query)
        return torch.maximum(*(tail(_side_energy(tensor, *side)) for side in sides))

    @classmethod
    def padded(cls, query: Tensor, key: Tensor, cores: Tensor, rank: int) -> Self:
        """Factors with `rank` shared dimensions, from bases of at most as many, padded with zeros.

        Args:
            query: (D_q, R_q).
            key: (D_k, R_k).
            cores: (H, R_q, R_k).
            rank: R, at least R_q and R_k.
        """
        query_missing, key_missing = rank - query.shape[1], rank - key.shape[1]
        return cls(
            query=pad(query, (0, query_missing)).contiguous(),
            key=pad(key, (0, key_missing)).contiguous(),
            mixing=pad(cores, (0, key_missing, 0, query_missing)).contiguous(),
        )

    def canonical(self) -> Self:
        """Every a_r and b_r has the same norm, such that ‖M‖² = R, as in ``cp``.

        The solver returns them by falling energy. Without equal norms, a whitened basis leaves keys of 70 beside cores
        of .001, and a step of Adam, the same for both, destroys the cores.
        """
        query_norm, key_norm = safe(self.norms(self.query)), safe(self.norms(self.key))  # (R,)
        mixing = self._scaled(query_norm, key_norm)
        scale = (mixing.norm() / self.rank**0.5).sqrt()  # of a_r and of b_r
        parts = self.query, self.key, self.mixing
        if scale != 0:
            parts = self.query * (scale / query_norm), self.key * (scale / key_norm), mixing / scale**2
        return self.of_heads(*(part.contiguous() for part in parts))

    def _scaled(self, query_norm: Tensor, key_norm: Tensor) -> Tensor:
        """M for columns of W̃_Q and W̃_K divided by their norms, (R,)."""
        return self.mixing * query_norm[:, None] * key_norm  # (H, R, R)


class RotaryTucker(SweptRotary, Tucker):
    """Complex cores for every frequency, by orthogonal iteration.

    Dimensions go to the frequencies with most to gain, as far as the cores stay within `most_core_entries`.
    """

    def cores_at(self, frequency: int) -> Tensor:
        return self._all_cores.get(frequency, as_complex(self.query).new_zeros(self.num_heads, 0, 0))

    @cached_property
    def _all_cores(self) -> dict[int, Tensor]:
        """The cores of every frequency, (H, r_f, r_f) each."""
        cores, read = {}, 0
        for frequency in dict.fromkeys(self.frequencies):
            size = self.frequencies.count(frequency)
            numbers = self.mixing[:, read : read + 2 * size**2].unflatten(-1, (2, size, size))
            cores[frequency] = torch.complex(numbers[:, 0], numbers[:, 1])
            read += 2 * size**2
        return cores

    @classmethod
    def stored(cls, cores: Sequence[Tensor]) -> Tensor:
        return torch.cat([torch.stack([each.real, each.imag], dim=1).flatten(1) for each in cores], dim=-1)

    def _scaled(self, query_norm: Tensor, key_norm: Tensor) -> Tensor:
        scaled = []
        for frequency, cores in self._all_cores.items():
            places = self.places(frequency)
            scaled.append(cores * query_norm[places][:, None] * key_norm[places])
        return self.stored(scaled)

    @classmethod
    def mixing_parameters(cls, rank: int, num_heads: int, head_dim: int) -> int:
        return 2 * num_heads * most_core_entries(rank // 2, head_dim // 2, num_heads)

    @classmethod
    def decay(cls, tensor: HeadTensor) -> Tensor:
        query, key = (compressed(side)[0] for side in by_frequency(tensor))
        return torch.maximum(*(tail(dimensions(_complex_side(*pair))) for pair in ((query, key), (key, query))))

    @classmethod
    def sizes(cls, concat: RotaryFactors, pairs: int, query: Tensor, key: Tensor) -> list[int]:
        count, _, heads = query.shape
        gain = (_complex_side(query, key) + _complex_side(key, query)).flatten()  # (F·H,)
        room = most_core_entries(pairs, count, heads)
        sizes = [0] * count
        for place in gain.argsort(descending=True, stable=True).tolist():
            frequency = place // heads
            more = 2 * sizes[frequency] + 1  # (r + 1)² - r²
            left = pairs - sum(sizes)
            if left and more <= room - (left - 1):  # each of the others takes at least one
                sizes[frequency] += 1
                room -= more
        return sizes

    @classmethod
    def solve_alike(cls, query: Tensor, key: Tensor, size: int, options: SolverOptions) -> Solved:
        total = safe(pair_energy(query, key).sum(dim=1))
        right = key
        captured = torch.zeros_like(total)
        done, converged = 0, False
        while done < options.max_sweeps and not converged:
            left = _complex_leading(query, key.mH @ right, size)
            right = _complex_leading(key, query.mH @ left, size)
            cores = torch.einsum("frh,fsh->fhrs", left.mH @ query, (right.mH @ key).conj())
            before, captured = captured, cores.abs().square().sum(dim=(1, 2, 3)) / total
            done += 1
            errors = ((1 - part).clamp(min=0).sqrt() for part in (before, captured))
            converged = done > 1 and bool((next(errors) - next(errors) < options.tolerance).all())
        return left, cores, right, done, converged


def decompose_tucker(tensor: HeadTensor, rank: int, concat: Factors, options: SolverOptions) -> Solution:
    """Tucker factors with `rank` shared query and key dimensions.

    Starts from the better of the truncated higher-order SVD and the span of the concatenated factors, so that the
    error is at most that of the ``concat`` form at the same rank.

    Args:
        tensor: 𝒯.
        rank: R. A side narrower than R is represented exactly and padded with zeros.
        concat: the ``concat`` factors at that rank.
        options: `max_sweeps` and `tolerance` apply.
    """
    norm_squared = tensor.norm_squared()
    query_rank, key_rank = min(rank, tensor.shape[0]), min(rank, tensor.shape[2])

    def captured(query: Tensor, key: Tensor) -> float:
        return float(tensor.cores(tensor.project_query(query), tensor.project_key(key)).square().sum())

    starts = [
        (
            _leading(tensor, tensor.query, tensor.key.T, query_rank)[0],
            _leading(tensor, tensor.key, tensor.query.T, key_rank)[0],
        ),
        (torch.linalg.qr(concat.query)[0][:, :query_rank], torch.linalg.qr(concat.key)[0][:, :key_rank]),
    ]
    energies = [captured(*start) for start in starts]
    energy = max(energies)
    query, key = starts[energies.index(energy)]
    errors = [_relative_error(energy, norm_squared)]
    converged = False
    while len(errors) <= options.max_sweeps and not converged:
        next_query, _ = _leading(tensor, tensor.query, tensor.project_key(key), query_rank)
        next_key, energy = _leading(tensor, tensor.key, tensor.project_query(next_query), key_rank)
        error = _relative_error(energy, norm_squared)
        converged = errors[-1] - error < options.tolerance
        if error <= errors[-1]:
            query, key = next_query, next_key
        errors.append(min(error, errors[-1]))

    cores = tensor.cores(tensor.project_query(query), tensor.project_key(key))  # (H, R_q, R_k)
    factors = Tucker.padded(query, key, cores, rank)
    logger.debug("Tucker: %d sweeps, relative error %.6f to %.6f", len(errors) - 1, errors[0], errors[-1])
    return Solution(factors, tuple(errors), converged, sweeps=len(errors) - 1)


def _leading(tensor: HeadTensor, factor: Tensor, projected_other: Tensor, rank: int) -> tuple[Tensor, float]:
    """The leading eigenvectors of Σ_h A_h B Bᵀ A_hᵀ, and the sum of their eigenvalues.

    Args:
        tensor: 𝒯, for its heads.
        factor: W_Q of shape (D, K), or W_K for the other side.
        projected_other: W_Kᵀ B of shape (K, n), or W_Qᵀ A.
        rank: number of vectors.
    """
    projected = tensor.by_head(projected_other)  # (H, d, n)
    blocks = projected @ projected.mT  # (H, d, d)
    weighted = (tensor.by_head(factor.T).mT @ blocks).movedim(0, 1)  # (D, H, d)
    values, vectors = torch.linalg.eigh(weighted.reshape(factor.shape) @ factor.T)  # ascending
    return vectors[:, -rank:].flip(1), float(values[-rank:].sum())


def _relative_error(energy: float, norm_squared: float) -> float:
    return math.sqrt(max(norm_squared - energy, 0.0) / norm_squared) if norm_squared > 0 else 0.0


def _side_energy(tensor: HeadTensor, own: Tensor, other: Tensor) -> Tensor:
    """Eigenvalues of Σ_h A_h A_hᵀ, given W_Q and W_K, or of Σ_h A_hᵀ A_h, given W_K and W_Q, falling, (K,)."""
    heads = tensor.by_head(other.T)  # (H, d, D)
    blocks = heads @ heads.mT  # (H, d, d)
    root = torch.block_diag(*blocks) @ own.T  # (K, D)
    values = torch.linalg.eigvalsh(own @ root).clamp(min=0).flip(0)  # (D,)
    missing = tensor.full_rank - len(values)
    return pad(values, (0, missing)) if missing > 0 else values[: tensor.full_rank]


def most_core_entries(pairs: int, frequencies: int, num_heads: int) -> int:
    """The most entries Σ_f r_f² that the core of a head has with Σ_f r_f = `pairs`: a quarter above the fewest."""
    fewest = pairs**2 / frequencies
    return min(math.ceil(_UNEVEN * fewest) + frequencies, pairs * num_heads)


def _complex_side(own: Tensor, other: Tensor) -> Tensor:
    """Eigenvalues of Σ_h T_f[:, h, :] T_f[:, h, :]^H of every frequency, falling, (F, H)."""
    weighted = own * other.abs().square().sum(dim=1, keepdim=True)
    values = torch.linalg.eigvalsh(weighted @ own.mH).clamp(min=0).flip(-1)
    return pad(values, (0, own.shape[2] - values.shape[-1]))


def _complex_leading(own: Tensor, projected: Tensor, size: int) -> Tensor:
    """Leading eigenvectors of Σ_h a_h a_h^H ‖b_h^H B‖², given b_h^H B, (F', H, n)."""
    weight = projected.abs().square().sum(dim=2)  # (F', H)
    _, vectors = torch.linalg.eigh(own * weight.unsqueeze(1) @ own.mH)
    return vectors[..., -size:].flip(-1)
