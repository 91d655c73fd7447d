"""The result of every decomposition: shared query and key projections, and how the heads mix them.

Every form writes a head as Â_h = W̃_Q G_h W̃_Kᵀ. A form is a class of factors for one kind of G_h ∈ R^{R×R}, of which
everything that depends on the kind is asked. Each has a file: `concat`, `cp` and `tucker`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from .head_tensor import HeadTensor
from .options import FormName, SolverOptions

CANCELLED = 1e-6
"""Below this fraction of the squared norm, a squared error computed as a difference of squares is all rounding."""


@dataclass(frozen=True)
class Factors(ABC):
    """Â_h = W̃_Q G_h W̃_Kᵀ for every head h, and the content terms where a layer has any.

    With it they are what an attention layer computes: s_h(x, y) = (x Â_h yᵀ + c_h·y) / √d. The first attributes are
    those of the form.

    Attributes:
        form: as a user, a config and a report write it.
        sharing: how the heads use the shared dimensions, in words.
        separate: whether every shared dimension belongs to one head, as in ordinary attention: heads are narrower, M
            is one-hot and not stored, and one query offset serves all heads.
        closed: whether the best factors are in closed form.
        starts_at_concat: whether the sweeps start at the ``concat`` factors, which stay if the sweeps end above their
            error.
        prediction_sweeps: number of sweeps that predicts the error of a full solve.
        learning_rate: peak learning rate of refinement, relative to the root mean square of the weights of a matrix.
        query: W̃_Q, shape (D_q, R).
        key: W̃_K, shape (D_k, R).
        mixing: M, what is stored of the G_h: as written here all of them, (H, R, R).
        content_bias: c, shape (H, D_k); None for factors without a content term, or with a folded one.
        query_offset: u, shape (H, R), or (1, R) in the ``concat`` form, if the content is folded.
        position_content: e, shape (H, D_q), of a layer whose queries are also positions (DeBERTa); None for others.
    """

    form: ClassVar[FormName]
    sharing: ClassVar[str]
    separate: ClassVar[bool] = False
    closed: ClassVar[bool] = False
    starts_at_concat: ClassVar[bool] = False
    prediction_sweeps: ClassVar[int] = 1
    learning_rate: ClassVar[float] = 0.02

    query: Tensor
    key: Tensor
    mixing: Tensor
    content_bias: Tensor | None = None
    query_offset: Tensor | None = None
    position_content: Tensor | None = None

    @classmethod
    def solve(cls, tensor: HeadTensor, rank: int, concat: Factors, options: SolverOptions) -> Solution:
        """Factors with R below K, given a tensor in float64 and its ``concat`` factors; closed forms need not."""
        raise NotImplementedError

    @classmethod
    @abstractmethod
    def decay(cls, tensor: HeadTensor) -> Tensor:
        """Relative squared error at every rank; see `collab.decomposition.decay`."""

    @abstractmethod
    def canonical(self) -> Self:
        """The same heads in the fixed gauge of the form, without content terms."""

    @classmethod
    def mixing_parameters(cls, rank: int, num_heads: int, head_dim: int) -> int:
        """Numbers in M; with rotary positions the most that there can be."""
        return num_heads * rank**2

    @classmethod
    def diagonal(cls, query: Tensor, key: Tensor, diagonals: Tensor) -> Factors:
        """Factors with diagonal G_h, given the diagonals, (H, R)."""
        return cls(query, key, torch.diag_embed(diagonals))

    @property
    def rank(self) -> int:
        """R, the number of shared query/key dimensions."""
        return self.query.shape[1]

    @property
    def num_heads(self) -> int:
        """H."""
        return self.mixing.shape[0]

    @property
    def head_ranks(self) -> tuple[int, ...] | None:
        """How many shared dimensions each head owns if every one belongs to one head; None in other forms."""
        if not self.separate:
            return None
        return tuple(int(owned) for owned in self.mixing.count_nonzero(dim=1))

    @property
    def content(self) -> Tensor | None:
        """c, shape (H, D_k), wherever it is stored."""
        if self.query_offset is None:
            return self.content_bias
        offset = self.mixing * self.query_offset if self.separate else self.query_offset  # (H, R)
        return offset @ self.key.T

    @property
    def num_parameters(self) -> int:
        """Numbers that a layer stores for them (a one-hot M is not stored)."""
        stored = [self.query, self.key, self.content_bias, self.query_offset, self.position_content]
        if not self.separate:
            stored.append(self.mixing)
        return sum(part.numel() for part in stored if part is not None)

    def to(self, like: torch.dtype | Tensor) -> Self:
        """These factors in another dtype, or in the dtype and on the device of a tensor."""
        parts = ("query", "key", "mixing", "content_bias", "query_offset", "position_content")
        values = {name: getattr(self, name) for name in parts}
        return replace(self, **{name: value.to(like) for name, value in values.items() if value is not None})

    def of_heads(self, query: Tensor, key: Tensor, mixing: Tensor) -> Self:
        """Factors of the same kind, without content terms."""
        return replace(
            self, query=query, key=key, mixing=mixing, content_bias=None, query_offset=None, position_content=None
        )

    def norms(self, columns: Tensor) -> Tensor:
        """The norm of the shared dimension that each column belongs to, (·, R) → (R,)."""
        return columns.norm(dim=0)

    def cores(self) -> Tensor:
        """G_h of every head, (H, R, R)."""
        return self.mixing

    def transposed(self) -> Self:
        """The factors of the transposed heads Â_hᵀ, without content terms."""
        return self.of_heads(self.key, self.query, self.mixing.mT)

    def mixed(self, projected: Tensor) -> Tensor:
        """x_h G_h for one x of each head, (H, R) → (H, R)."""
        return (projected.unsqueeze(1) @ self.mixing).squeeze(1)

    def head(self, h: int) -> Tensor:
        """Â_h, shape (D_q, D_k)."""
        return self.query @ self.mixing[h] @ self.key.T

    def sides(self, h: int) -> tuple[Tensor, Tensor]:
        """A (D_q, r) and a (D_k, r) matrix with the product Â_h, of the dimensions that the head uses."""
        core = self.mixing[h]
        rows, columns = (core != 0).any(dim=1), (core != 0).any(dim=0)
        return self.query[:, rows] @ core[rows][:, columns], self.key[:, columns]

    def scale_heads(self, scale: Tensor, *, inverse: bool = False) -> Self:
        """Factors of the heads times numbers, (H,), or divided by them."""
        if self.separate:  # M stays one-hot
            numbers = self.mixing.T @ scale  # (R,)
            return replace(self, query=self.query / numbers if inverse else self.query * numbers)
        numbers = scale.view(-1, *[1] * (self.mixing.ndim - 1))
        return replace(self, mixing=self.mixing / numbers if inverse else self.mixing * numbers)

    def norm_squared(self, query_gram: Tensor, key_gram: Tensor, head_weight: Tensor | float = 1.0) -> float:
        """Σ_h w_h tr(G_hᵀ Γ_q G_h Γ_k): the squared norm of the heads, given the Gram matrices of the projections.

        Args:
            query_gram: Γ_q, W̃_QᵀW̃_Q or W̃_QᵀΣ_qW̃_Q, (R, R).
            key_gram: Γ_k, W̃_KᵀW̃_K or W̃_KᵀΣ_kW̃_K, (R, R).
            head_weight: w, (H,).
        """
        heads = (self.mixing * (query_gram @ self.mixing @ key_gram)).sum(dim=(1, 2))  # (H,)
        return float((head_weight * heads).sum())

    def component_energy(self) -> float:
        """Σ ‖a_r ∘ m_r ∘ b_r‖², the energy of the rank-one terms taken one by one.

        Divided by ‖𝒯‖² this is the degeneracy of Phan et al. (ECCV 2020): far above 1, large terms cancel each other
        and fine-tuning is unstable.
        """
        query, key = self.query.square().sum(dim=0), self.key.square().sum(dim=0)  # (R,)
        return float(torch.einsum("r,hrs,s->", query, self.mixing.square(), key))

    def inner(self, tensor: HeadTensor) -> float:
        """⟨𝒯, 𝒯̂⟩, 𝒯̂ being the tensor that these factors stand for."""
        cores = tensor.cores(tensor.project_query(self.query), tensor.project_key(self.key))  # (H, R, R)
        return float((self.mixing * cores).sum())

    def residual(self, tensor: HeadTensor, h: int) -> Tensor:
        """A_h - Â_h, shape (D_q, D_k)."""
        return tensor.head(h) - self.head(h)

    def relative_error(self, tensor: HeadTensor) -> float:
        """‖𝒯 - 𝒯̂‖ / ‖𝒯‖, accurate for tiny errors too."""
        norm_squared = tensor.norm_squared()
        squared = norm_squared - 2 * self.inner(tensor)
        squared += self.norm_squared(self.query.T @ self.query, self.key.T @ self.key)
        if not squared > CANCELLED * norm_squared:  # the difference has cancelled, so compute it head by head
            squared = sum(float(self.residual(tensor, h).square().sum()) for h in range(tensor.num_heads))
        return math.sqrt(squared / norm_squared) if norm_squared > 0 else math.sqrt(squared)

    def to_tensorly(self) -> Any:
        """The factors as a `tensorly.cp_tensor.CPTensor` or `tensorly.tucker_tensor.TuckerTensor`, modes (D_q, H, D_k).

        Use it under ``tensorly.backend_context("pytorch")`` to reach tensorly's metrics and transformations.
        """
        from tensorly.tucker_tensor import TuckerTensor  # tensorly is slow to import

        heads = torch.eye(self.num_heads, dtype=self.mixing.dtype, device=self.mixing.device)
        return TuckerTensor((self.mixing.transpose(0, 1).contiguous(), [self.query, heads, self.key]))


class DiagonalFactors(Factors):
    """Factors with diagonal G_h: M holds the diagonals, (H, R)."""

    @classmethod
    def mixing_parameters(cls, rank: int, num_heads: int, head_dim: int) -> int:
        return 0 if cls.separate else num_heads * rank

    @classmethod
    def diagonal(cls, query: Tensor, key: Tensor, diagonals: Tensor) -> Factors:
        return cls(query, key, diagonals)

    def cores(self) -> Tensor:
        return torch.diag_embed(self.mixing)

    def transposed(self) -> Self:
        return self.of_heads(self.key, self.query, self.mixing)

    def mixed(self, projected: Tensor) -> Tensor:
        return projected * self.mixing

    def head(self, h: int) -> Tensor:
        return (self.query * self.mixing[h]) @ self.key.T

    def sides(self, h: int) -> tuple[Tensor, Tensor]:
        used = self.mixing[h] != 0  # (R,)
        return self.query[:, used] * self.mixing[h, used], self.key[:, used]

    def norm_squared(self, query_gram: Tensor, key_gram: Tensor, head_weight: Tensor | float = 1.0) -> float:
        return float(((self.mixing.T * head_weight) @ self.mixing * query_gram * key_gram).sum())

    def component_energy(self) -> float:
        query, key = self.query.square().sum(dim=0), self.key.square().sum(dim=0)  # (R,)
        return float((query * self.mixing.square().sum(dim=0) * key).sum())

    def inner(self, tensor: HeadTensor) -> float:
        diagonals = tensor.mttkrp_heads(tensor.project_query(self.query), tensor.project_key(self.key))  # (H, R)
        return float((self.mixing * diagonals).sum())

    def to_tensorly(self) -> Any:
        from tensorly.cp_tensor import CPTensor

        weights = torch.ones(self.rank, dtype=self.query.dtype, device=self.query.device)
        return CPTensor((weights, [self.query, self.mixing, self.key]))


@dataclass(frozen=True)
class Solution:
    """Factors, and how the solver reached them.

    Attributes:
        factors: the result.
        errors: relative error ‖𝒯 - 𝒯̂‖/‖𝒯‖ at the start, where the solver knows it, and after every sweep.
        converged: whether the error had stopped falling, by `SolverOptions.tolerance`, before the sweeps ran out.
        error: relative error ‖𝒯 - 𝒯̂‖/‖𝒯‖ of the heads' query-key products, measured head by head on the result; NaN
            before it is measured, as for the next two.
        concat_error: the same of the closed-form ``concat`` factors at the same rank, of what was solved.
        degeneracy: Σ_r ‖a_r ∘ m_r ∘ b_r‖²/‖𝒯‖² (Phan et al. 2020) of what was solved; far above 1 means components
            that cancel.
        score_error: relative error of a layer's scores in the metric of its moments, content included; None without
            moments.
        head_dim: d of the original heads; scores are divided by its square root.
        seconds: wall-clock time of the solve.
        sweeps: sweeps done; 0 where the form is closed or the rank is full.
    """

    factors: Factors
    errors: tuple[float, ...] = ()
    converged: bool = True
    error: float = math.nan
    concat_error: float = math.nan
    degeneracy: float = math.nan
    score_error: float | None = None
    head_dim: int = 1
    seconds: float = 0.0
    sweeps: int = 0

    def scores(self, query_input: Tensor, key_input: Tensor) -> Tensor:
        """The attention scores before the softmax, up to a constant over the keys.

        Args:
            query_input: x, shape (..., T, D_q).
            key_input: y, shape (..., S, D_k).

        Returns:
            Scores of shape (..., H, T, S).
        """
        heads = torch.stack([self.factors.head(h) for h in range(self.factors.num_heads)])  # (H, D_q, D_k)
        scores = query_input.unsqueeze(-3) @ heads @ key_input.unsqueeze(-3).mT  # (..., H, T, S)
        content = self.factors.content
        if content is not None:
            scores = scores + (key_input @ content.T).mT.unsqueeze(-2)  # + (..., H, 1, S)
        return scores / self.head_dim**0.5


def safe(norm: Tensor) -> Tensor:
    """Norms with zeros replaced by one, to divide by."""
    return torch.where(norm > 0, norm, torch.ones_like(norm))


def balanced(query: Tensor, key: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The same components, (D, R), with ‖a_r‖ = ‖b_r‖, and their ‖a_r‖‖b_r‖, (R,)."""
    query_norm, key_norm = query.norm(dim=0), key.norm(dim=0)
    energy = query_norm * key_norm
    # A component without queries stays one of the keys, because folded content may need it.
    common = torch.where(energy > 0, energy.sqrt(), torch.maximum(query_norm, key_norm))
    return query * (common / safe(query_norm)), key * (common / safe(key_norm)), energy


def tail(energy: Tensor) -> Tensor:
    """The part of the energy beyond each number of leading terms, (K + 1,)."""
    total = energy.sum()
    if not total > 0:
        return torch.zeros(len(energy) + 1, dtype=energy.dtype, device=energy.device)
    left = energy.flip(0).cumsum(0).flip(0) / total
    return torch.cat([left, left.new_zeros(1)])
