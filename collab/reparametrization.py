"""One attention layer's query and key weights, rewritten as shared projections.

Head h scores (x W_Q^h + b_Q^h)(y W_K^h + b_K^h)ᵀ / √d. Over the keys the softmax sees only two of the four terms: the
context x A_h yᵀ and the content y·c_h with c_h = W_K^h b_Q^h. So b_Q becomes the content bias and b_K has no effect
(Cordonnier et al. 2020, section 3.2). The scale stays √d of the original head, whatever R is.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .decomposition import Decomposition, Factors, Form, HeadTensor, SolverOptions, decompose
from .errors import ShapeError, WeightsError
from .rank import Rank, resolve_rank


@dataclass(frozen=True)
class Reparametrization:
    """A layer's scores in collaborative form: s_h(x, y) = (x W̃_Q G_h W̃_Kᵀ yᵀ + c_h·y) / √d.

    Attributes:
        factors: W̃_Q (D_q, R), W̃_K (D_k, R) and M or the cores, in the dtype and on the device of the weights given.
        content_bias: c, shape (H, D_k), or None for a layer without a query bias.
        head_dim: d of the original heads; scores are divided by its square root.
        decomposition: the same factors as solved, and how well they fit.
    """

    factors: Factors
    content_bias: Tensor | None
    head_dim: int
    decomposition: Decomposition

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
        if self.content_bias is not None:
            scores = scores + (key_input @ self.content_bias.T).mT.unsqueeze(-2)  # + (..., H, 1, S)
        return scores / self.head_dim**0.5


def reparametrize(
    query_weight: Tensor,
    query_bias: Tensor | None,
    key_weight: Tensor,
    key_bias: Tensor | None = None,
    *,
    num_heads: int,
    rank: Rank,
    form: Form = "cp",
    solver: SolverOptions | None = None,
    seed: int = 0,
) -> Reparametrization:
    """Rewrites one layer's query and key projections as collaborative attention.

    Args:
        query_weight: W_Qᵀ as `torch.nn.Linear` stores it, shape (K, D_q).
        query_bias: b_Q, shape (K,), or None.
        key_weight: W_Kᵀ, shape (K, D_k).
        key_bias: b_K, shape (K,), or None. It is constant over the keys, so the softmax never sees it and it is
            dropped.
        num_heads: H.
        rank: R from 1 to K, or a fraction of K in (0, 1].
        form: ``concat``, ``cp`` or ``tucker``.
        solver: how to solve.
        seed: of the random start of the ``tensorly`` method.

    Raises:
        ShapeError: if the shapes are not those of one attention layer.
        WeightsError: if a weight is NaN or infinite.
        RankError, ConfigurationError, DeviceError: as `collab.decomposition.decompose`.
    """
    named = {"query_weight": query_weight, "query_bias": query_bias, "key_weight": key_weight, "key_bias": key_bias}
    for name, value in named.items():
        if value is not None and not value.isfinite().all():
            raise WeightsError(f"{name} has NaN or infinite entries.")
    solver = solver or SolverOptions()
    with torch.no_grad():
        device = solver.resolve_device(query_weight.device)
        query, key = (weight.to(device).double().T.contiguous() for weight in (query_weight, key_weight))  # (D, K)
        exact = HeadTensor(query, key, num_heads)
        for name, bias in (("query_bias", query_bias), ("key_bias", key_bias)):
            if bias is not None and bias.shape != (exact.full_rank,):
                raise ShapeError(f"{name} must have shape ({exact.full_rank},), not {tuple(bias.shape)}.")
        resolved = resolve_rank(rank, exact.full_rank)
        decomposition = decompose(exact, form, resolved, solver, seed)
        content_bias = None
        if query_bias is not None:
            by_head = query_bias.to(exact.key).view(num_heads, -1, 1)  # (H, d, 1)
            content_bias = (exact.by_head(exact.key.T.contiguous()) * by_head).sum(dim=1)  # (H, D_k)
            content_bias = content_bias.to(key_weight)
    solved = decomposition.factors
    factors = Factors(
        solved.form,
        query=solved.query.to(query_weight),
        key=solved.key.to(key_weight),
        mixing=solved.mixing.to(query_weight),
    )
    return Reparametrization(factors, content_bias, exact.head_dim, decomposition)
