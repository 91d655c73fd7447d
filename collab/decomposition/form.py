"""The forms: kinds of G_h ∈ R^{R×R} in Â_h = W̃_Q G_h W̃_Kᵀ, and all that follows from them.

Whatever depends on the form asks it. A form is one file with a subclass of `Form` and, for layers with rotary
positions, one of `RotaryForm`: `concat`, `cp` and `tucker`.
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
    """A form. M stands for what it stores of the G_h; as written here that is all of them, (H, R, R).

    Attributes:
        name: as a user, a config and a report write it.
        rotary: the same form with rotary positions.
        sharing: how the heads use the shared dimensions, in words.
        separate: whether every shared dimension belongs to one head, as in ordinary attention: heads are narrower, M
            is one-hot and not stored, and one query offset serves all heads.
        closed: whether the best factors are in closed form.
        starts_at_concat: whether the sweeps start at the ``concat`` factors, which stay if the sweeps end above their
            error.
        prediction_sweeps: number of sweeps that predicts the error of a full solve.
        learning_rate: peak learning rate of refinement, relative to the root mean square of the weights of a matrix.
    """

    name: ClassVar[FormName]
    rotary: ClassVar[RotaryForm]
    sharing: ClassVar[str]
    separate: ClassVar[bool] = False
    closed: ClassVar[bool] = False
    starts_at_concat: ClassVar[bool] = False
    prediction_sweeps: ClassVar[int] = 1
    learning_rate: ClassVar[float] = 0.02

    def __repr__(self) -> str:
        return self.name

    @abstractmethod
    def solve(self, tensor: HeadTensor, rank: int, concat: Factors, options: SolverOptions, seed: int) -> Solution:
        """Factors with R below K of a normalized tensor in float64, given the ``concat`` factors at that rank."""

    @abstractmethod
    def decay(self, tensor: HeadTensor) -> Tensor:
        """Relative squared error at every rank; see `collab.decomposition.decay`."""

    @abstractmethod
    def canonical(self, factors: Factors) -> Factors:
        """The same heads in the form's gauge, without content terms."""

    def mixing_parameters(self, rank: int, num_heads: int) -> int:
        """Numbers in M."""
        return num_heads * rank**2

    def of_diagonals(self, diagonals: Tensor) -> Tensor:
        """M with diagonal G_h, given the diagonals, (H, R)."""
        return torch.diag_embed(diagonals)

    def cores(self, mixing: Tensor) -> Tensor:
        """G_h of every head, (H, R, R)."""
        return mixing

    def transposed(self, mixing: Tensor) -> Tensor:
        """M with G_hᵀ in place of G_h."""
        return mixing.mT

    def mixed(self, projected: Tensor, mixing: Tensor) -> Tensor:
        """x_h G_h for one x of each head, (H, R) → (H, R)."""
        return (projected.unsqueeze(1) @ mixing).squeeze(1)

    def head(self, factors: Factors, h: int) -> Tensor:
        """Â_h, (D_q, D_k)."""
        return factors.query @ factors.mixing[h] @ factors.key.T

    def sides(self, factors: Factors, h: int) -> tuple[Tensor, Tensor]:
        """A (D_q, r) and a (D_k, r) matrix with the product Â_h, of the dimensions that the head uses."""
        core = factors.mixing[h]
        rows, columns = (core != 0).any(dim=1), (core != 0).any(dim=0)
        return factors.query[:, rows] @ core[rows][:, columns], factors.key[:, columns]

    def products(self, tensor: HeadTensor, projected_query: Tensor, projected_key: Tensor) -> Tensor:
        """Those entries of Aᵀ A_h B that have a number in M, in its shape; arguments as in `HeadTensor.cores`."""
        return tensor.cores(projected_query, projected_key)

    def norm_squared(self, mixing: Tensor, query_gram: Tensor, key_gram: Tensor, head_weight: Tensor) -> float:
        """Σ_h w_h tr(G_hᵀ Γ_q G_h Γ_k); see `Factors.norm_squared`."""
        heads = (mixing * (query_gram @ mixing @ key_gram)).sum(dim=(1, 2))  # (H,)
        return float((head_weight * heads).sum())

    def component_energy(self, query_energy: Tensor, mixing: Tensor, key_energy: Tensor) -> float:
        """Σ ‖a_r ∘ m_r ∘ b_r‖², given the ‖a_r‖² and the ‖b_r‖², (R,)."""
        return float(torch.einsum("r,hrs,s->", query_energy, mixing.square(), key_energy))

    def per_head(self, mixing: Tensor, values: Tensor) -> tuple[str, Tensor]:
        """The part of the factors that carries the size of a head, and `values`, (H,), in a shape to multiply it by."""
        return "mixing", values.view(-1, *[1] * (mixing.ndim - 1))

    def to_tensorly(self, factors: Factors) -> Any:
        """The factors as a container of tensorly."""
        from tensorly.tucker_tensor import TuckerTensor  # tensorly is slow to import

        heads = torch.eye(factors.num_heads, dtype=factors.mixing.dtype, device=factors.mixing.device)
        return TuckerTensor((factors.mixing.transpose(0, 1).contiguous(), [factors.query, heads, factors.key]))


class DiagonalForm(Form):
    """A form with diagonal G_h: M holds the diagonals, (H, R)."""

    def mixing_parameters(self, rank: int, num_heads: int) -> int:
        return 0 if self.separate else num_heads * rank

    def of_diagonals(self, diagonals: Tensor) -> Tensor:
        return diagonals

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

    def component_energy(self, query_energy: Tensor, mixing: Tensor, key_energy: Tensor) -> float:
        return float((query_energy * mixing.square().sum(dim=0) * key_energy).sum())

    def to_tensorly(self, factors: Factors) -> Any:
        from tensorly.cp_tensor import CPTensor

        weights = torch.ones(factors.rank, dtype=factors.query.dtype, device=factors.query.device)
        return CPTensor((weights, [factors.query, factors.mixing, factors.key]))


def tail(energy: Tensor) -> Tensor:
    """The part of the energy beyond each number of leading terms, (K + 1,)."""
    total = energy.sum()
    if not total > 0:
        return torch.zeros(len(energy) + 1, dtype=energy.dtype, device=energy.device)
    left = energy.flip(0).cumsum(0).flip(0) / total
    return torch.cat([left, left.new_zeros(1)])
