"""What a form is: the kind of G_h ∈ R^{R×R} in Â_h = W̃_Q G_h W̃_Kᵀ, and all that follows from it.

Whatever depends on the form asks it, so a form is one file with a subclass of `Form` and one of `RotaryForm`: `concat`,
`cp` and `tucker`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
from torch import Tensor

from .factors import Factors, Solution
from .head_tensor import HeadTensor
from .options import FormName, SolverOptions
from .rotary_factors import RotaryForm


class Form(ABC):
    """A form of collaborative attention; M stands for M or the cores, whichever it stores.

    Attributes:
        name: as a user, a config and a report write it.
        rotary: the same form with rotary positions.
        sharing: how the heads use the shared dimensions, in words.
        separate: whether every shared dimension belongs to one head, as in ordinary attention: heads are narrower, M
            is one-hot and not stored, and one query offset serves all heads.
        closed: whether the best factors are in closed form.
        starts_at_concat: whether the sweeps start at the ``concat`` factors, with which they can always do as well.
        prediction_sweeps: sweeps that predict the error of a full solve.
        learning_rate: of refinement, relative to the root mean square of the weights of a matrix.
    """

    name: ClassVar[FormName]
    rotary: ClassVar[RotaryForm]
    sharing: ClassVar[str]
    separate: ClassVar[bool] = False
    closed: ClassVar[bool] = False
    starts_at_concat: ClassVar[bool] = False
    prediction_sweeps: ClassVar[int] = 1
    learning_rate: ClassVar[float] = 0.02

    @abstractmethod
    def solve(self, tensor: HeadTensor, rank: int, concat: Factors, options: SolverOptions, seed: int) -> Solution:
        """Solves for factors with R below K.

        Args:
            tensor: 𝒯 in float64, normalized.
            rank: R.
            concat: the ``concat`` factors at that rank.
            options: solver settings.
            seed: random seed of the ``tensorly`` method.
        """

    @abstractmethod
    def decay(self, tensor: HeadTensor) -> Tensor:
        """Relative squared error at every rank; see `collab.decomposition.decay`."""

    @abstractmethod
    def mixing_parameters(self, rank: int, num_heads: int) -> int:
        """Numbers in M."""

    @abstractmethod
    def of_diagonals(self, diagonals: Tensor) -> Tensor:
        """M with G_h = diag(m_h), given the m_h, (H, R)."""

    @abstractmethod
    def diagonals(self, mixing: Tensor) -> Tensor:
        """Diagonals of the G_h, (H, R)."""

    @abstractmethod
    def cores(self, mixing: Tensor) -> Tensor:
        """G_h of every head, (H, R, R)."""

    @abstractmethod
    def transposed(self, mixing: Tensor) -> Tensor:
        """M with G_hᵀ in place of G_h."""

    @abstractmethod
    def mixed(self, projected: Tensor, mixing: Tensor) -> Tensor:
        """x_h G_h for one x of each head, (H, R) → (H, R)."""

    @abstractmethod
    def head(self, factors: Factors, h: int) -> Tensor:
        """Â_h, (D_q, D_k)."""

    @abstractmethod
    def sides(self, factors: Factors, h: int) -> tuple[Tensor, Tensor]:
        """Â_h as a (D_q, r) and a (D_k, r) matrix whose product it is, of the dimensions that the head uses."""

    @abstractmethod
    def products(self, tensor: HeadTensor, projected_query: Tensor, projected_key: Tensor) -> Tensor:
        """The entries of Aᵀ A_h B that have a number in M, in its shape; arguments as in `HeadTensor.cores`."""

    @abstractmethod
    def norm_squared(self, mixing: Tensor, query_gram: Tensor, key_gram: Tensor, head_weight: Tensor) -> float:
        """Σ_h w_h tr(G_hᵀ Γ_q G_h Γ_k); see `Factors.norm_squared`."""

    @abstractmethod
    def component_energy(self, factors: Factors) -> float:
        """Σ ‖a_r ∘ m_r ∘ b_r‖²; see `Factors.component_energy`."""

    @abstractmethod
    def canonical(self, factors: Factors) -> Factors:
        """The same heads in the form's gauge."""

    @abstractmethod
    def to_tensorly(self, factors: Factors) -> Any:
        """The factors as a container of tensorly."""

    def per_head(self, mixing: Tensor, values: Tensor) -> tuple[str, Tensor]:
        """Which part of the factors carries the size of a head, and `values`, (H,), in a shape to multiply it by."""
        return "mixing", values.view(-1, *[1] * (mixing.ndim - 1))


class DiagonalForm(Form):
    """Forms with diagonal G_h, whose diagonals are the rows of M, (H, R)."""

    def of_diagonals(self, diagonals: Tensor) -> Tensor:
        return diagonals

    def diagonals(self, mixing: Tensor) -> Tensor:
        return mixing

    def cores(self, mixing: Tensor) -> Tensor:
        return torch.diag_embed(mixing)

    def transposed(self, mixing: Tensor) -> Tensor:
        return mixing

    def mixed(self, projected: Tensor, mixing: Tensor) -> Tensor:
        return projected * mixing

    def head(self, factors: Factors, h: int) -> Tensor:
        return (factors.query * factors.mixing[h]) @ factors.key.T

    def sides(self, factors: Factors, h: int) -> tuple[Tensor, Tensor]:
        used = factors.mixing[h] != 0  # (R,)
        return factors.query[:, used] * factors.mixing[h, used], factors.key[:, used]

    def products(self, tensor: HeadTensor, projected_query: Tensor, projected_key: Tensor) -> Tensor:
        return tensor.mttkrp_heads(projected_query, projected_key)

    def norm_squared(self, mixing: Tensor, query_gram: Tensor, key_gram: Tensor, head_weight: Tensor) -> float:
        return float(((mixing.T * head_weight) @ mixing * query_gram * key_gram).sum())

    def component_energy(self, factors: Factors) -> float:
        query, key = factors.query.square().sum(dim=0), factors.key.square().sum(dim=0)  # (R,)
        return float((query * factors.mixing.square().sum(dim=0) * key).sum())

    def to_tensorly(self, factors: Factors) -> Any:
        from tensorly.cp_tensor import CPTensor  # tensorly is slow to import

        weights = torch.ones(factors.rank, dtype=factors.query.dtype, device=factors.query.device)
        return CPTensor((weights, [factors.query, factors.mixing, factors.key]))


def tail(energy: Tensor) -> Tensor:
    """What is left beyond each number of leading terms, relative to all, (K + 1,)."""
    total = energy.sum()
    if not total > 0:
        return torch.zeros(len(energy) + 1, dtype=energy.dtype, device=energy.device)
    left = energy.flip(0).cumsum(0).flip(0) / total
    return torch.cat([left, left.new_zeros(1)])
