"""Factors of a layer with rotary positions, and what a form is there; see `collab.decomposition.rotary`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from .factors import Factors
from .options import SolverOptions


@dataclass(frozen=True)
class RotaryFactors(Factors):
    """Shared complex dimensions of a layer with rotary positions, as real numbers: real parts, then imaginary ones.

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

    def block(self, frequency: int) -> tuple[Tensor, Tensor, Tensor]:
        """A_f (D, r_f), the heads' cores (H, r_f, r_f) and B_f (D, r_f), complex."""
        places = self.places(frequency)
        query, key = as_complex(self.query)[:, places], as_complex(self.key)[:, places]
        return query, self.form.rotary.cores(self, frequency), key

    def places(self, frequency: int) -> list[int]:
        """The complex dimensions of a frequency."""
        return [place for place, other in enumerate(self.frequencies) if other == frequency]

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

    def canonical(self) -> RotaryFactors:
        """The same heads in a fixed gauge: norms as in `Factors.canonical`, of complex dimensions."""
        return self.form.rotary.canonical(self)


Solved = tuple[Tensor, Tensor, Tensor, int, bool]
"""A (F', ·, r), cores (F', H, r, r) and B (F', ·, r) of F' frequencies, sweeps, and whether they converged."""


class RotaryForm(ABC):
    """A form with rotary positions: the kind of the complex G_{fh} of every frequency f.

    Attributes:
        by_head: whether the dimensions are ordered by head, and not by frequency.
    """

    by_head: ClassVar[bool] = False

    @abstractmethod
    def cores(self, factors: RotaryFactors, frequency: int) -> Tensor:
        """G_{fh} of every head, (H, r_f, r_f), complex."""

    @abstractmethod
    def canonical(self, factors: RotaryFactors) -> RotaryFactors:
        """The same heads in the form's gauge."""

    @abstractmethod
    def decay(self, query: Tensor, key: Tensor) -> Tensor:
        """Relative squared error at every rank, (K + 1,), given the heads' complex columns, (F, D, H)."""

    def mixing_parameters(self, rank: int, num_heads: int, head_dim: int) -> int:
        """The most numbers that are stored."""
        return num_heads * rank

    def sizes(self, kept: Tensor, pairs: int, query: Tensor, key: Tensor) -> list[int]:
        """r_f of every frequency: by default as many as pairs of head and frequency are kept.

        Args:
            kept: the pairs, (F, H), that the ``concat`` form keeps.
            pairs: R/2.
            query: heads' complex columns, (F, ·, H).
            key: the same of the keys.
        """
        return kept.sum(dim=1).tolist()

    def solve(self, query: Tensor, key: Tensor, size: int, options: SolverOptions) -> Solved:
        """Solves several frequencies of one r, given their complex columns, (F', ·, H); closed forms need not."""
        raise NotImplementedError

    def mixing(self, cores: Sequence[Tensor]) -> Tensor:
        """The numbers to store, (H, ·), given the cores (H, r_f, r_f) of every frequency; closed forms need not."""
        raise NotImplementedError

    def owned(self, owner: Tensor, frequencies: Sequence[int]) -> Tensor:
        """The numbers to store if every complex dimension is that of one head: one-hot heads, (H, R/2)."""
        places = [torch.tensor(frequencies) == frequency for frequency in dict.fromkeys(frequencies)]
        return self.mixing([torch.diag_embed(owner[:, mine].to(owner.dtype.to_complex())) for mine in places])


def as_complex(columns: Tensor) -> Tensor:
    """(…, R) real → (…, R/2) complex."""
    real, imaginary = columns.chunk(2, dim=-1)
    return torch.complex(real.contiguous(), imaginary.contiguous())


def as_real(columns: Tensor) -> Tensor:
    """(…, R/2) complex → (…, R) real."""
    return torch.cat([columns.real, columns.imag], dim=-1)


def pair_norms(columns: Tensor) -> Tensor:
    """Norm of each complex dimension, for both of its columns, (R,)."""
    return torch.hypot(*columns.norm(dim=0).chunk(2)).repeat(2)


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
