"""The Tucker form: shared projections and a core per head, by orthogonal iteration on the factored tensor.

With orthonormal W̃_Q and W̃_K the best cores are G_h = W̃_Qᵀ A_h W̃_K, and the error is least when Σ_h ‖G_h‖² is
largest. HOOI (De Lathauwer, De Moor and Vandewalle 2000) alternates: W̃_Q becomes the leading eigenvectors of
Σ_h A_h W̃_K W̃_Kᵀ A_hᵀ, then W̃_K those of Σ_h A_hᵀ W̃_Q W̃_Qᵀ A_h. On the factored tensor the first D×D matrix is
W_Q S W_Qᵀ with a d×d block of S for each head, so no dense A_h is needed. The head mode is not reduced.
"""

from __future__ import annotations

import logging
import math

import torch
from torch import Tensor

from .factors import Factors, Solution, tucker_factors
from .head_tensor import HeadTensor
from .options import SolverOptions

logger = logging.getLogger(__name__)


def decompose_tucker(tensor: HeadTensor, rank: int, concat: Factors, options: SolverOptions) -> Solution:
    """Tucker factors with `rank` shared query and key dimensions.

    Starts from the better of the truncated higher-order SVD and the span of the concatenated factors, so that the
    error is at most that of the ``concat`` form at the same rank.

    Args:
        tensor: 𝒯.
        rank: R. A side narrower than R is represented exactly and padded with zeros.
        concat: the ``concat`` factors at that rank.
        options: `max_sweeps` and `tolerance` apply.
    """
    norm_squared = tensor.norm_squared()
    query_rank, key_rank = min(rank, tensor.shape[0]), min(rank, tensor.shape[2])

    def captured(query: Tensor, key: Tensor) -> float:
        return float(tensor.cores(tensor.project_query(query), tensor.project_key(key)).square().sum())

    starts = [
        (
            _leading(tensor, tensor.query, tensor.key.T, query_rank)[0],
            _leading(tensor, tensor.key, tensor.query.T, key_rank)[0],
        ),
        (torch.linalg.qr(concat.query)[0][:, :query_rank], torch.linalg.qr(concat.key)[0][:, :key_rank]),
    ]
    energies = [captured(*start) for start in starts]
    energy = max(energies)
    query, key = starts[energies.index(energy)]
    errors = [_relative_error(energy, norm_squared)]
    converged = False
    while len(errors) <= options.max_sweeps and not converged:
        next_query, _ = _leading(tensor, tensor.query, tensor.project_key(key), query_rank)
        next_key, energy = _leading(tensor, tensor.key, tensor.project_query(next_query), key_rank)
        error = _relative_error(energy, norm_squared)
        converged = errors[-1] - error < options.tolerance
        if error <= errors[-1]:
            query, key = next_query, next_key
        errors.append(min(error, errors[-1]))

    cores = tensor.cores(tensor.project_query(query), tensor.project_key(key))  # (H, R_q, R_k)
    factors = tucker_factors(query, key, cores, rank)
    logger.debug("Tucker: %d sweeps, relative error %.6f to %.6f", len(errors) - 1, errors[0], errors[-1])
    return Solution(factors, tuple(errors), converged, sweeps=len(errors) - 1)


def _leading(tensor: HeadTensor, factor: Tensor, projected_other: Tensor, rank: int) -> tuple[Tensor, float]:
    """The leading eigenvectors of Σ_h A_h B Bᵀ A_hᵀ, and the sum of their eigenvalues.

    Args:
        tensor: 𝒯, for its heads.
        factor: W_Q of shape (D, K), or W_K for the other side.
        projected_other: W_Kᵀ B of shape (K, n), or W_Qᵀ A.
        rank: number of vectors.
    """
    projected = tensor.by_head(projected_other)  # (H, d, n)
    blocks = projected @ projected.mT  # (H, d, d)
    weighted = (tensor.by_head(factor.T).mT @ blocks).movedim(0, 1)  # (D, H, d)
    values, vectors = torch.linalg.eigh(weighted.reshape(factor.shape) @ factor.T)  # ascending
    return vectors[:, -rank:].flip(1), float(values[-rank:].sum())


def _relative_error(energy: float, norm_squared: float) -> float:
    return math.sqrt(max(norm_squared - energy, 0.0) / norm_squared) if norm_squared > 0 else 0.0
