"""The approximation problem of one attention layer with disentangled positions (DeBERTa).

Content to content, content to position and position to content have the same A_h, so one decomposition serves all; see
`collab.modeling.collab_disentangled`. Tokens y enter a score with the content 1 or 2 times c_h (`LayerProblem`), rows p
of the relative embedding with the content f_h = [c2p] c_h + [p2c] e_h, e_h = W_Q^h b_K^h. With moments, errors at the
means are taken out of both terms: of x A_h (y + p) at the mean query μ_h, which c_h and f_h take, and of p A_h y at the
mean key ν_h, which f_h takes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from ..decomposition import Factors, FormName, Solution, SolverOptions
from ..decomposition.options import Content
from ..modeling.collab_disentangled import PositionTerms
from .layer import LayerProblem, at_query
from .moments import LayerMoments


@dataclass(frozen=True)
class DisentangledProblem(LayerProblem):
    """As `LayerProblem`, with positions as a second kind of queries and keys.

    Attributes:
        key_bias: b_K, (K,), or None; it enters the scores of positions as queries.
        terms: the terms of positions.
    """

    terms: PositionTerms = field(kw_only=True)

    def solve(self, form: FormName, rank: int, content: Content, solver: SolverOptions, seed: int = 0) -> Solution:
        """Approximates the layer; arguments as in `reparametrize`."""
        solution = super().solve(form, rank, content, solver, seed)
        if not self.terms.p2c:
            return solution
        factors, moments = solution.factors, None if rank == self.tensor.full_rank else self.moments
        wanted = self._position_content(factors, moments)  # (H, D)
        if self.terms.c2p and (stored := factors.content) is not None:
            wanted = wanted - stored
        factors = replace(factors, position_content=wanted)
        score_error = None if self.moments is None else self.score_error(factors, self.moments)
        return replace(solution, factors=factors, score_error=score_error)

    def score_error(self, factors: Factors, moments: LayerMoments) -> float:
        """Relative error of the scores on inputs of the given moments, contents of tokens and positions included."""
        factors, moments = factors.to(self.tensor.query), moments.to(self.tensor.query.device)
        norm = moments.metric.norm_squared(self.tensor)
        squared = moments.metric.relative_error(self.tensor, factors) ** 2 * (norm if norm > 0 else 1.0)
        content = factors.content
        content = content if content is not None else torch.zeros_like(moments.query_mean)
        errors = [self._token_share * (self._token_content(factors, moments) - content)]
        if factors.position_content is not None:
            stored = factors.position_content + (content if self.terms.c2p else 0.0)
            errors.append(self._position_content(factors, moments) - stored)
        for error in errors:  # (H, D)
            squared += float(moments.head_weight @ (error @ moments.key_covariance * error).sum(dim=1))
        return math.sqrt(squared / norm) if norm > 0 else math.sqrt(squared)

    @property
    def _token_share(self) -> int:
        """How often the content of a token is in its score."""
        return 2 if self.terms.p2c else 1

    @property
    def _query_mean(self) -> Tensor:
        # Only one of the terms with a token's content has queries of this mean, and the content is the same in both.
        return super()._query_mean / self._token_share

    def _token_content(self, factors: Factors, moments: LayerMoments) -> Tensor:
        """The content of tokens that takes out the error at the mean query, (H, D)."""
        mean = moments.query_mean / self._token_share
        return self._content(mean) - at_query(mean, factors)

    def _position_content(self, factors: Factors, moments: LayerMoments | None) -> Tensor:
        """f_h, with what takes out the errors at the mean query and at the mean key, (H, D)."""
        heads = self.tensor.query.new_zeros(self.tensor.num_heads, len(self.tensor.query))  # (H, D)
        content = torch.zeros_like(heads)
        if self.terms.c2p:
            mean = heads if moments is None else moments.query_mean
            content = self._content(mean) - (0.0 if moments is None else at_query(mean, factors))
        if not self.terms.p2c:
            return content
        mean = heads if moments is None or moments.key_mean is None else moments.key_mean
        queries = self.tensor.by_head(self.tensor.query.T)  # (H, d, D)
        constant = (self.tensor.by_head(self.tensor.key.T) @ mean.unsqueeze(-1)).flatten()  # (K,)
        if self.key_bias is not None:
            constant = constant + self.key_bias
        content = content + (queries * self.tensor.by_head(constant.unsqueeze(1))).sum(dim=1)
        return content - (0.0 if moments is None else at_query(mean, factors.transposed()))
