"""Which errors matter: the metric that the scores of real inputs put on the head tensor.

An error ΔA_h = A_h - Â_h moves a score by x ΔA_h yᵀ. Over queries x with covariance Σ_q and keys y with covariance Σ_k
that is on average Σ_h w_h ‖Σ_q^{1/2} ΔA_h Σ_k^{1/2}‖², w_h being how much the scores of head h matter. It is the plain
problem for the whitened factors Σ_q^{1/2} W_Q and Σ_k^{1/2} W_K, which are still a Kruskal tensor, so every solver
serves, and what it returns is unwhitened (the matrix case is SVD-LLM's, arXiv 2403.07378).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .factors import CANCELLED, Factors
from .head_tensor import HeadTensor

DAMPING = 1e-3


@dataclass(frozen=True)
class Metric:
    """Σ_q, Σ_k and w.

    Attributes:
        query_covariance: Σ_q, shape (D_q, D_q), symmetric and positive semidefinite; it may be singular.
        key_covariance: Σ_k, shape (D_k, D_k), symmetric and positive semidefinite.
        head_weight: w, shape (H,), not negative.
    """

    query_covariance: Tensor
    key_covariance: Tensor
    head_weight: Tensor

    def norm_squared(self, tensor: HeadTensor) -> float:
        """Σ_h w_h ‖Σ_q^{1/2} A_h Σ_k^{1/2}‖²."""
        query = tensor.by_head(tensor.query.T @ self.query_covariance).mT  # (H, D_q, d)
        key = tensor.by_head(tensor.key.T @ self.key_covariance).mT  # (H, D_k, d)
        query_gram = tensor.by_head(tensor.query.T) @ query  # (H, d, d)
        key_gram = tensor.by_head(tensor.key.T) @ key  # (H, d, d)
        return float(((query_gram * key_gram).sum(dim=(1, 2)) * self.head_weight).sum())

    def relative_error(self, tensor: HeadTensor, factors: Factors, content_error: Tensor | None = None) -> float:
        """√(Σ_h w_h ‖Σ_q^{1/2} ΔA_h Σ_k^{1/2}‖² / Σ_h w_h ‖Σ_q^{1/2} A_h Σ_k^{1/2}‖²), undamped.

        Args:
            tensor: 𝒯, in float64.
            factors: 𝒯̂.
            content_error: (H, D_k) error of the content term at the mean query, or None.
        """
        norm_squared = self.norm_squared(tensor)
        squared = self._squared_error(tensor, factors, norm_squared)
        if content_error is not None:
            squared += float(self.head_weight @ (content_error @ self.key_covariance * content_error).sum(dim=1))
        return math.sqrt(max(squared, 0.0) / norm_squared) if norm_squared > 0 else math.sqrt(max(squared, 0.0))

    def _squared_error(self, tensor: HeadTensor, factors: Factors, norm_squared: float) -> float:
        query, key = self.query_covariance @ factors.query, self.key_covariance @ factors.key  # (D, R)
        weight = self.head_weight.repeat_interleave(tensor.head_dim)  # (K,)
        seen = HeadTensor(tensor.query * weight, tensor.key, tensor.num_heads)
        inner = replace(factors, query=query, key=key).inner(seen)
        squared = norm_squared - 2 * inner
        squared += factors.norm_squared(factors.query.T @ query, factors.key.T @ key, self.head_weight)
        if squared > CANCELLED * norm_squared:
            return squared
        # The difference has cancelled, so compute it head by head.
        residuals = (factors.residual(tensor, h) for h in range(tensor.num_heads))  # (D_q, D_k) each
        heads = [
            float((self.query_covariance @ residual * (residual @ self.key_covariance)).sum()) for residual in residuals
        ]
        return sum(float(weight) * head for weight, head in zip(self.head_weight, heads, strict=True))


class Whitening:
    """The change of basis in which a metric is the plain one.

    `damping` times the mean is added to the eigenvalues, so that directions never seen in calibration are kept as well
    as the rank allows instead of being free; the same is added to the weights of the heads.
    """

    def __init__(self, metric: Metric, damping: float = DAMPING) -> None:
        self._query_axes, self._query_root = _axes(metric.query_covariance, damping)  # (D_q, D_q), (D_q, 1)
        self._key_axes, self._key_root = _axes(metric.key_covariance, damping)  # (D_k, D_k), (D_k, 1)
        weight = metric.head_weight + damping * metric.head_weight.mean()
        self._head = (weight / weight.mean()).sqrt() if float(weight.sum()) > 0 else torch.ones_like(weight)  # (H,)

    def whiten(self, tensor: HeadTensor, constant: Tensor | None = None) -> HeadTensor:
        """The tensor of √w_h Σ_q^{1/2} A_h Σ_k^{1/2}.

        Args:
            tensor: 𝒯.
            constant: (K,) the heads' queries at the mean input, bias included, to be approximated along with the rest
                as one more row: an input that is always 1; or None.
        """
        query = self._query_axes.mT @ tensor.query * self._query_root  # (D_q, K)
        if constant is not None:
            query = torch.cat([query, constant.unsqueeze(0)])  # (D_q + 1, K)
        scale = self._head.repeat_interleave(tensor.head_dim)  # (K,)
        return HeadTensor(query * scale, self._whiten_keys(tensor.key), tensor.num_heads)

    def whiten_factors(self, factors: Factors) -> Factors:
        """Factors in the whitened basis."""
        query = self._query_axes.mT @ factors.query * self._query_root  # (D_q, R)
        return replace(factors, query=query, key=self._whiten_keys(factors.key)).scale_heads(self._head)

    def unwhiten(self, factors: Factors) -> Factors:
        """Factors of the whitened tensor as factors of the original; the row of a constant is dropped."""
        query = self._query_axes @ (factors.query[: len(self._query_root)] / self._query_root)  # (D_q, R)
        key = self._key_axes @ (factors.key / self._key_root)  # (D_k, R)
        return replace(factors, query=query, key=key).scale_heads(self._head, inverse=True).canonical()

    def fit_keys(self, key: Tensor, content: Tensor) -> Tensor:
        """Coefficients of the keys that come nearest to contents: argmin_u ‖Σ_k^{1/2} (W̃_K u - c)‖.

        Args:
            key: W̃_K, (D_k, R).
            content: c, (D_k, n).

        Returns:
            (R, n).
        """
        # By singular values, because keys may depend on one another.
        return torch.linalg.pinv(self._whiten_keys(key)) @ self._whiten_keys(content)

    def _whiten_keys(self, key: Tensor) -> Tensor:
        return self._key_axes.mT @ key * self._key_root  # (D_k, n)


def _axes(covariance: Tensor, damping: float) -> tuple[Tensor, Tensor]:
    """V, (D, D), and ρ, (D, 1), such that diag(ρ) Vᵀ is a square root S of the damped covariance, SᵀS = Σ."""
    values, vectors = torch.linalg.eigh(covariance)
    values = values.clamp(min=0)
    mean = values.mean()
    return vectors, (values + damping * (mean if mean > 0 else 1.0)).sqrt().unsqueeze(1)
