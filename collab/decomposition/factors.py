"""The result of every decomposition: shared query and key projections, and how the heads mix them.

All three forms write a head as Â_h = W̃_Q G_h W̃_Kᵀ and differ in G_h ∈ R^{R×R}:

- ``concat``: a 0/1 diagonal; every shared dimension belongs to one head, which is ordinary multi-head attention with
  narrower heads.
- ``cp``: diag(m_h), with M ∈ R^{H×R} the mixing matrix (Cordonnier et al. 2020, equation 9).
- ``tucker``: a full core for each head.

Whatever depends on G_h is asked of the form (`collab.decomposition.form`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from .form import Form


@dataclass(frozen=True)
class Factors:
    """Â_h = W̃_Q G_h W̃_Kᵀ for every head h, and the content terms where a layer has any.

    With it they are what an attention layer computes: s_h(x, y) = (x Â_h yᵀ + c_h·y) / √d.

    Attributes:
        form: the kind of G_h.
        query: W̃_Q, shape (D_q, R).
        key: W̃_K, shape (D_k, R).
        mixing: M of shape (H, R) in the ``concat`` (one-hot columns, heads in order) and ``cp`` forms; the cores, of
            shape (H, R, R), in the ``tucker`` form.
        content_bias: c, shape (H, D_k); None for factors without a content term, or with a folded one.
        query_offset: u, shape (H, R), or (1, R) in the ``concat`` form, if the content is folded.
        position_content: e, shape (H, D_q), of a layer whose queries are also positions (DeBERTa); None for others.
    """

    form: Form
    query: Tensor
    key: Tensor
    mixing: Tensor
    content_bias: Tensor | None = None
    query_offset: Tensor | None = None
    position_content: Tensor | None = None

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
        if not self.form.separate:
            return None
        return tuple(int(owned) for owned in self.mixing.count_nonzero(dim=1))

    @property
    def content(self) -> Tensor | None:
        """c, shape (H, D_k), wherever it is stored."""
        if self.query_offset is None:
            return self.content_bias
        offset = self.mixing * self.query_offset if self.form.separate else self.query_offset  # (H, R)
        return offset @ self.key.T

    @property
    def num_parameters(self) -> int:
        """Numbers that a layer stores for them (a one-hot M is not stored)."""
        stored = [self.query, self.key, self.content_bias, self.query_offset, self.position_content]
        if not self.form.separate:
            stored.append(self.mixing)
        return sum(part.numel() for part in stored if part is not None)

    def head(self, h: int) -> Tensor:
        """Â_h, shape (D_q, D_k)."""
        return self.form.head(self, h)

    def transposed(self) -> Factors:
        """The factors of the transposed heads Â_hᵀ, without content terms."""
        return Factors(self.form, query=self.key, key=self.query, mixing=self.form.transposed(self.mixing))

    def to(self, like: torch.dtype | Tensor) -> Factors:
        """These factors in another dtype, or in the dtype and on the device of a tensor."""
        parts = ("query", "key", "mixing", "content_bias", "query_offset", "position_content")
        values = {name: getattr(self, name) for name in parts}
        return replace(self, **{name: value.to(like) for name, value in values.items() if value is not None})

    def scale_heads(self, scale: Tensor, *, inverse: bool = False) -> Factors:
        """Factors of the heads times numbers, (H,), or divided by them."""
        name, numbers = self.form.per_head(self.mixing, scale)
        part = getattr(self, name)
        return replace(self, **{name: part / numbers if inverse else part * numbers})

    def norm_squared(self, query_gram: Tensor, key_gram: Tensor, head_weight: Tensor | None = None) -> float:
        """Σ_h w_h tr(G_hᵀ Γ_q G_h Γ_k): the squared norm of the heads, given the Gram matrices of the projections.

        Args:
            query_gram: Γ_q, W̃_QᵀW̃_Q or W̃_QᵀΣ_qW̃_Q, (R, R).
            key_gram: Γ_k, W̃_KᵀW̃_K or W̃_KᵀΣ_kW̃_K, (R, R).
            head_weight: w, (H,); None for ones.
        """
        weight = self.mixing.new_ones(self.num_heads) if head_weight is None else head_weight
        return self.form.norm_squared(self.mixing, query_gram, key_gram, weight)

    def component_energy(self) -> float:
        """Σ ‖a_r ∘ m_r ∘ b_r‖², the energy of the rank-one terms taken one by one.

        Divided by ‖𝒯‖² this is the degeneracy of Phan et al. (ECCV 2020): far above 1, large terms cancel each other
        and fine-tuning is unstable.
        """
        query, key = self.query.square().sum(dim=0), self.key.square().sum(dim=0)  # (R,)
        return self.form.component_energy(query, self.mixing, key)

    def canonical(self) -> Factors:
        """The same heads in the fixed gauge of the form, which its `canonical` describes; without content terms."""
        return self.form.canonical(self)

    def to_tensorly(self) -> Any:
        """The factors as a `tensorly.cp_tensor.CPTensor` or `tensorly.tucker_tensor.TuckerTensor`, modes (D_q, H, D_k).

        Use it under ``tensorly.backend_context("pytorch")`` to reach tensorly's metrics and transformations.
        """
        return self.form.to_tensorly(self)


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
