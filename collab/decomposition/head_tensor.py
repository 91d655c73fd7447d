"""The tensor of a layer's heads, held in factored form.

Head h of an attention layer scores the context by A_h = W_Q^h W_K^hᵀ (Cordonnier et al. 2020, section 3). Stacked,
the A_h form a D_q×H×D_k tensor 𝒯 with 𝒯[:, h, :] = A_h. It is an exact Kruskal tensor of rank K = H·d,
𝒯 = [[W_Q, E, W_K]] with E the indicator of which head a column belongs to, so norms, inner products and the matrix
product with a Khatri-Rao product (MTTKRP) cost products of D×K, H×K and K×R matrices: 𝒯 itself is never formed.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import ShapeError


@dataclass(frozen=True)
class HeadTensor:
    """𝒯[:, h, :] = W_Q^h W_K^hᵀ, given by its two factors.

    Query and key inputs may have different widths (cross-attention), and neither needs to equal K.

    Attributes:
        query: W_Q, shape (D_q, K), the heads' columns one after the other.
        key: W_K, shape (D_k, K).
        num_heads: H.

    Raises:
        ShapeError: if the factors are not matrices with the same number of columns, a multiple of H, or differ in
            dtype or device.
    """

    query: Tensor
    key: Tensor
    num_heads: int

    def __post_init__(self) -> None:
        if self.query.ndim != 2 or self.key.ndim != 2:
            raise ShapeError(
                f"Query and key weights must be matrices, not of shapes {tuple(self.query.shape)} and "
                f"{tuple(self.key.shape)}."
            )
        if self.query.shape[1] != self.key.shape[1]:
            raise ShapeError(
                f"Query and key must project to the same number of dimensions, not {self.query.shape[1]} and "
                f"{self.key.shape[1]}."
            )
        if self.num_heads < 1 or self.query.shape[1] % self.num_heads:
            raise ShapeError(
                f"{self.query.shape[1]} query dimensions cannot be divided among {self.num_heads} heads; check "
                "num_heads."
            )
        if self.query.dtype != self.key.dtype or self.query.device != self.key.device:
            raise ShapeError("Query and key weights must have the same dtype and be on the same device.")

    @property
    def shape(self) -> tuple[int, int, int]:
        """(D_q, H, D_k)."""
        return self.query.shape[0], self.num_heads, self.key.shape[0]

    @property
    def full_rank(self) -> int:
        """K, the rank at which every form is exact."""
        return self.query.shape[1]

    @property
    def head_dim(self) -> int:
        """Head dimension d = K / H."""
        return self.full_rank // self.num_heads

    def by_head(self, projected: Tensor) -> Tensor:
        """Views a (K, n) matrix as (H, d, n)."""
        return projected.view(self.num_heads, self.head_dim, projected.shape[1])

    def head(self, h: int) -> Tensor:
        """A_h, shape (D_q, D_k)."""
        columns = slice(h * self.head_dim, (h + 1) * self.head_dim)
        return self.query[:, columns] @ self.key[:, columns].T

    def dense(self) -> Tensor:
        """𝒯 itself, shape (D_q, H, D_k), for reference solvers and tests: it takes D_q·H·D_k numbers."""
        return torch.stack([self.head(h) for h in range(self.num_heads)], dim=1)

    def norm_squared(self) -> float:
        """‖𝒯‖² = Σ_h ‖A_h‖²."""
        query, key = self.by_head(self.query.T), self.by_head(self.key.T)  # (H, d, D)
        return float(((query @ query.mT).double() * (key @ key.mT)).sum())

    def project_query(self, factor: Tensor) -> Tensor:
        """W_Qᵀ A: a (D_q, R) factor seen by the heads' query dimensions, shape (K, R)."""
        return self.query.T @ factor

    def project_key(self, factor: Tensor) -> Tensor:
        """W_Kᵀ B: a (D_k, R) factor seen by the heads' key dimensions, shape (K, R)."""
        return self.key.T @ factor

    def mttkrp_query(self, mixing: Tensor, projected_key: Tensor) -> Tensor:
        """Σ_h A_h B diag(m_h), shape (D_q, R): 𝒯's query unfolding times the Khatri-Rao product of M and B.

        Args:
            mixing: M, shape (H, R).
            projected_key: W_Kᵀ B, shape (K, R), from `project_key`.
        """
        mixed = self.by_head(projected_key) * mixing[:, None, :]  # (H, d, R)
        return self.query @ mixed.view(self.full_rank, -1)

    def mttkrp_key(self, mixing: Tensor, projected_query: Tensor) -> Tensor:
        """Σ_h A_hᵀ A diag(m_h), shape (D_k, R)."""
        mixed = self.by_head(projected_query) * mixing[:, None, :]  # (H, d, R)
        return self.key @ mixed.view(self.full_rank, -1)

    def mttkrp_heads(self, projected_query: Tensor, projected_key: Tensor) -> Tensor:
        """a_rᵀ A_h b_r for every head and component, shape (H, R)."""
        return (self.by_head(projected_query) * self.by_head(projected_key)).sum(dim=1)

    def cores(self, projected_query: Tensor, projected_key: Tensor) -> Tensor:
        """Aᵀ A_h B for every head, shape (H, R_q, R_k)."""
        return self.by_head(projected_query).mT @ self.by_head(projected_key)

    def compress(self) -> tuple[HeadTensor, Tensor | None, Tensor | None]:
        """The same tensor in orthonormal bases of its column spaces, smaller where an input is wider than K.

        Returns:
            The compressed tensor and the query and key bases, of shapes (D_q, K) and (D_k, K), or None for a side that
            was not wider than K. Errors and norms measured on the compressed tensor are those of this one.
        """
        query, query_basis = _compress(self.query)
        key, key_basis = _compress(self.key)
        return HeadTensor(query, key, self.num_heads), query_basis, key_basis

    def to(self, *args: torch.dtype | torch.device | str) -> HeadTensor:
        """This tensor with its factors moved or cast as by `torch.Tensor.to`."""
        query, key = self.query, self.key
        for target in args:
            query, key = query.to(target), key.to(target)
        return HeadTensor(query, key, self.num_heads)


def _compress(factor: Tensor) -> tuple[Tensor, Tensor | None]:
    if factor.shape[0] <= factor.shape[1]:
        return factor, None
    basis, triangle = torch.linalg.qr(factor)  # (D, K), (K, K)
    return triangle, basis
