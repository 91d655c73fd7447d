"""Factors of a layer with rotary positions; see `collab.decomposition.rotary`."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from .factors import Factors, Solution, safe
from .head_tensor import HeadTensor
from .options import SolverOptions

Solved = tuple[Tensor, Tensor, Tensor, int, bool]
"""A (F', ·, r), cores (F', H, r, r) and B (F', ·, r) of F' frequencies, sweeps, and whether they converged."""


@dataclass(frozen=True)
class RotaryFactors(Factors):
    """Shared complex dimensions of a layer with rotary positions, as real numbers: real parts, then imaginary ones.

    A form with rotary positions is a subclass of this and of the form, for one kind of the complex G_{fh} of every
    frequency f.

    Attributes:
        query: (D, R), of which columns j and j + R/2 are one complex dimension. With biases, the last row is theirs.
        key: the same for the keys.
        mixing: (H, R), complex in the ``cp`` form, 0 and 1 in the ``concat`` form; in the ``tucker`` form
            (H, Σ_f 2 r_f²), for each frequency the real and then the imaginary part of the core, (r_f, r_f).
        frequencies: the frequency of each of the R/2 complex dimensions; equal ones are neighbours in the ``cp`` and
            ``tucker`` forms, in the ``concat`` form the dimensions are ordered by head.
        biased: whether inputs have a last entry that is always 1.
    """

    frequencies: tuple[int, ...] = ()
    biased: bool = False

    @abstractmethod
    def cores_at(self, frequency: int) -> Tensor:
        """G_{fh} of every head, (H, r_f, r_f), complex."""

    @classmethod
    @abstractmethod
    def owned(cls, owner: Tensor, frequencies: Sequence[int]) -> Tensor:
        """M if every complex dimension is that of one head: one-hot heads, (H, R/2)."""

    def block(self, frequency: int) -> tuple[Tensor, Tensor, Tensor]:
        """A_f (D, r_f), the heads' cores (H, r_f, r_f) and B_f (D, r_f), complex."""
        places = self.places(frequency)
        return as_complex(self.query)[:, places], self.cores_at(frequency), as_complex(self.key)[:, places]

    def places(self, frequency: int) -> list[int]:
        """The complex dimensions of a frequency."""
        return [place for place, other in enumerate(self.frequencies) if other == frequency]

    def norms(self, columns: Tensor) -> Tensor:
        return torch.hypot(*columns.norm(dim=0).chunk(2)).repeat(2)

    def head(self, h: int) -> Tensor:
        """Σ_f Re T̂_f[:, h, :], (D, D): what the head scores two tokens at the same position by."""
        blocks = (self.block(frequency) for frequency in dict.fromkeys(self.frequencies))
        return torch.stack([(query @ cores[h] @ key.mH).real for query, cores, key in blocks]).sum(dim=0)

    def component_energy(self) -> float:
        """Σ ‖a_r ∘ m_r ∘ b_r‖², as for other layers."""
        energy = 0.0
        for frequency in dict.fromkeys(self.frequencies):
            query, cores, key = (part.abs().square() for part in self.block(frequency))
            energy += float(torch.einsum("r,hrs,s->", query.sum(dim=0), cores, key.sum(dim=0)))
        return energy

    def relative_error(self, tensor: HeadTensor) -> float:
        """√(Σ_f ‖T_f - T̂_f‖² / Σ_f ‖T_f‖²), accurate for tiny errors too."""
        squared = norm = 0.0
        for frequency, (query, key) in enumerate(zip(*by_frequency(tensor), strict=True)):
            left, cores, right = self.block(frequency)
            # In bases of both sides together, [e_h e_hᵀ, 0; 0, -G_h] is what is left of head h.
            left_triangle = torch.linalg.qr(torch.cat([query, left], dim=1), mode="r").R
            right_triangle = torch.linalg.qr(torch.cat([key, right], dim=1), mode="r").R
            heads = query.shape[1]
            own = torch.einsum("ih,jh->hij", left_triangle[:, :heads], right_triangle[:, :heads].conj())
            given = left_triangle[:, heads:] @ cores @ right_triangle[:, heads:].mH  # (H, ·, ·)
            squared += float((own - given).abs().square().sum())
            norm += float(own.abs().square().sum())
        return math.sqrt(squared / norm) if norm > 0 else math.sqrt(squared)

    def balanced_pairs(self, energy: Tensor | float = 1.0) -> tuple[Tensor, Tensor]:
        """W̃_Q and W̃_K with ‖a_r‖ = ‖b_r‖, both times the root of numbers, (R,)."""
        query_norm, key_norm = self.norms(self.query), self.norms(self.key)  # (R,)
        common = (query_norm * energy * key_norm).sqrt()
        return self.query * (common / safe(query_norm)), self.key * (common / safe(key_norm))


class SweptRotary(RotaryFactors):
    """A form with rotary positions whose factors are found by sweeps of every frequency."""

    @classmethod
    def solve(cls, tensor: HeadTensor, rank: int, concat: Factors, options: SolverOptions) -> Solution:
        """Factors by sweeps of every frequency, given the ``concat`` factors at that rank."""
        assert isinstance(concat, RotaryFactors)
        (query, query_basis), (key, key_basis) = map(compressed, by_frequency(tensor))
        sizes = cls.sizes(concat, rank // 2, query, key)
        solved: dict[int, tuple[Tensor, Tensor, Tensor]] = {}
        sweeps, converged = 0, True
        for size in sorted({size for size in sizes if size}):
            alike = [frequency for frequency, other in enumerate(sizes) if other == size]
            *parts, done, settled = cls.solve_alike(query[alike], key[alike], size, options)
            sweeps, converged = max(sweeps, done), converged and settled
            for number, frequency in enumerate(alike):
                left, cores, right = (part[number] for part in parts)
                solved[frequency] = query_basis[frequency] @ left, cores, key_basis[frequency] @ right
        return Solution(cls._joined(solved, concat.biased).canonical(), sweeps=sweeps, converged=converged)

    @classmethod
    def sizes(cls, concat: RotaryFactors, pairs: int, query: Tensor, key: Tensor) -> list[int]:
        """r_f of every frequency: by default as many as pairs of head and frequency are kept.

        Args:
            concat: the ``concat`` factors, which keep pairs.
            pairs: R/2.
            query: heads' complex columns, (F, ·, H).
            key: the same of the keys.
        """
        return [concat.frequencies.count(frequency) for frequency in range(len(query))]

    @classmethod
    @abstractmethod
    def solve_alike(cls, query: Tensor, key: Tensor, size: int, options: SolverOptions) -> Solved:
        """Solves several frequencies of one r, given their complex columns, (F', ·, H)."""

    @classmethod
    @abstractmethod
    def stored(cls, cores: Sequence[Tensor]) -> Tensor:
        """M, (H, ·), given the cores (H, r_f, r_f) of every frequency."""

    @classmethod
    def owned(cls, owner: Tensor, frequencies: Sequence[int]) -> Tensor:
        places = [torch.tensor(frequencies) == frequency for frequency in dict.fromkeys(frequencies)]
        return cls.stored([torch.diag_embed(owner[:, mine].to(owner.dtype.to_complex())) for mine in places])

    @classmethod
    def _joined(cls, solved: dict[int, tuple[Tensor, Tensor, Tensor]], biased: bool) -> Self:
        """Factors from A_f, the heads' cores and B_f of every frequency that has any; runs of equal width together."""
        order = sorted(solved, key=lambda frequency: (-solved[frequency][0].shape[1], frequency))
        queries, cores, keys = zip(*(solved[frequency] for frequency in order), strict=True)
        query, key = (as_real(torch.cat(side, dim=1)) for side in (queries, keys))
        frequencies = tuple(frequency for frequency in order for _ in range(solved[frequency][0].shape[1]))
        return cls(query, key, cls.stored(cores), frequencies=frequencies, biased=biased)


def by_frequency(tensor: HeadTensor) -> tuple[Tensor, Tensor]:
    """The complex columns w_q^{hf} and w_k^{hf} of every frequency, (F, D, H) each."""

    def columns(factor: Tensor) -> Tensor:
        return as_complex(factor.unflatten(1, (tensor.num_heads, -1))).permute(2, 0, 1).contiguous()

    return columns(tensor.query), columns(tensor.key)


def as_complex(columns: Tensor) -> Tensor:
    """(…, R) real → (…, R/2) complex."""
    real, imaginary = columns.chunk(2, dim=-1)
    return torch.complex(real.contiguous(), imaginary.contiguous())


def as_real(columns: Tensor) -> Tensor:
    """(…, R/2) complex → (…, R) real."""
    return torch.cat([columns.real, columns.imag], dim=-1)


def pair_energy(query: Tensor, key: Tensor) -> Tensor:
    """‖w_q^{hf} (w_k^{hf})^H‖² of every frequency and head, (F, H)."""
    return query.abs().square().sum(dim=1) * key.abs().square().sum(dim=1)


def compressed(columns: Tensor) -> tuple[Tensor, Tensor]:
    """Columns (F, D, H) in an orthonormal basis of their span, (F, H, H), and the basis, (F, D, H)."""
    basis, triangle = torch.linalg.qr(columns)
    return triangle, basis


def dimensions(energy: Tensor) -> Tensor:
    """Energies of complex dimensions, in any shape and order, as those of real ones, falling, (K,)."""
    return (energy.flatten().sort(descending=True).values / 2).repeat_interleave(2)
