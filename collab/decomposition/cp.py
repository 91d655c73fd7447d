"""The collaborative form: CP decomposition by accelerated alternating least squares.

Each sweep solves in turn for W̃_Q, W̃_K and M with the other two fixed. Three things make it fast and safe:

- The head tensor is itself a Kruskal tensor, so a sweep costs four products of a D×K with a K×R matrix instead of
  three passes over 𝒯 (`HeadTensor`).
- Sweeps start from an extrapolation of the last two (Nesterov momentum with restarts, as in Mitchell, Ye and De Sterck
  2020 for canonical tensor decompositions). An extrapolation that does not pay is dropped and momentum starts again.
- The objective is ‖𝒯 - 𝒯̂‖²/‖𝒯‖² + ρ ε² Σ_r ‖a_r ∘ m_r ∘ b_r‖²/‖𝒯‖². The second term is the degeneracy (Phan et al.,
  ECCV 2020): without it, accelerated ALS drifts into large components that cancel each other. In the normal equations
  it is a ridge of ρ ε² times the diagonal of the Gram matrix, so it needs no scale of its own. ε is the error of the
  start; when the sweeps have converged far below it, it is lowered to the error reached and they go on.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import torch
from torch import Tensor

from .factors import Factors, Solution
from .head_tensor import HeadTensor
from .options import SolverOptions

logger = logging.getLogger(__name__)

_PATIENCE = 5  # sweeps over which the fall of the error is averaged, because momentum makes it uneven
_DAMPING = 1e-12  # keeps components of no energy solvable; relative to the mean of the Gram matrix's diagonal


@dataclass(frozen=True)
class _Iterate:
    """One point of the search, with W_Kᵀ B kept because the next sweep starts from it."""

    query: Tensor  # A (D_q, R)
    mixing: Tensor  # M (H, R)
    key: Tensor  # B (D_k, R)
    projected_key: Tensor  # W_Kᵀ B (K, R)
    squared_error: float
    degeneracy: float

    def objective(self, ridge: float) -> float:
        """The objective that the sweeps minimize."""
        return self.squared_error + ridge * self.degeneracy

    def toward(self, previous: _Iterate, momentum: float) -> tuple[Tensor, Tensor, Tensor]:
        """M, B and W_Kᵀ B extrapolated beyond this point; A needs none because a sweep solves for it first."""
        if momentum == 0:
            return self.mixing, self.key, self.projected_key
        return (
            torch.lerp(previous.mixing, self.mixing, 1 + momentum),
            torch.lerp(previous.key, self.key, 1 + momentum),
            torch.lerp(previous.projected_key, self.projected_key, 1 + momentum),
        )


class _Sweeper:
    """Alternating least squares on one head tensor."""

    def __init__(self, tensor: HeadTensor) -> None:
        self.tensor = tensor
        self.norm_squared = tensor.norm_squared()
        self.ridge = 0.0

    def measure(self, query: Tensor, mixing: Tensor, key: Tensor, projected_key: Tensor) -> _Iterate:
        """The iterate at a given point."""
        gram = (query.T @ query) * (key.T @ key)
        inner = self.tensor.mttkrp_heads(self.tensor.project_query(query), projected_key)
        return self._iterate(query, mixing, key, projected_key, gram, inner)

    def sweep(self, mixing: Tensor, key: Tensor, projected_key: Tensor) -> _Iterate:
        """Solves for A, then B, then M."""
        tensor = self.tensor
        mixing_gram = mixing.T @ mixing
        query = self._solve(tensor.mttkrp_query(mixing, projected_key), mixing_gram * (key.T @ key))  # (D_q, R)
        projected_query = tensor.project_query(query)  # (K, R)
        query_gram = query.T @ query
        key = self._solve(tensor.mttkrp_key(mixing, projected_query), mixing_gram * query_gram)  # (D_k, R)
        projected_key = tensor.project_key(key)  # (K, R)
        gram = query_gram * (key.T @ key)
        inner = tensor.mttkrp_heads(projected_query, projected_key)  # (H, R)
        mixing = self._solve(inner, gram)

        # Extrapolation compares columns of one sweep with those of the last, so keep their scales comparable.
        query_norm, key_norm = query.norm(dim=0), key.norm(dim=0)
        balance = (query_norm / key_norm).sqrt().nan_to_num(1.0, posinf=1.0, neginf=1.0)
        balance = torch.where(balance > 0, balance, torch.ones_like(balance))
        return self._iterate(query / balance, mixing, key * balance, projected_key * balance, gram, inner)

    def _iterate(
        self, query: Tensor, mixing: Tensor, key: Tensor, projected_key: Tensor, gram: Tensor, inner: Tensor
    ) -> _Iterate:
        overlap = gram * (mixing.T @ mixing)  # ⟨component r, component s⟩
        squared = self.norm_squared - 2 * float((inner * mixing).double().sum()) + float(overlap.double().sum())
        squared_error = max(squared, 0.0) / self.norm_squared
        degeneracy = float(overlap.diagonal().sum()) / self.norm_squared
        return _Iterate(query, mixing, key, projected_key, squared_error, degeneracy)

    def _solve(self, target: Tensor, gram: Tensor) -> Tensor:
        """X with X (Γ + ridge diag(Γ)) = target, in float64."""
        gram = gram.double()
        diagonal = gram.diagonal()
        damping = self.ridge * diagonal + _DAMPING * diagonal.mean()
        for _ in range(8):
            triangle, failed = torch.linalg.cholesky_ex(gram + torch.diag(damping))
            if not failed:
                if len(target) < len(gram):
                    return torch.cholesky_solve(target.double().T, triangle).T.to(target.dtype)
                return target @ torch.cholesky_inverse(triangle).to(target.dtype)  # the big product in its own dtype
            damping = damping * 100
        # Nothing to solve for: a tensor of zeros, or components that are all empty.
        return torch.zeros_like(target)


def decompose_cp(tensor: HeadTensor, start: Factors, options: SolverOptions) -> Solution:
    """CP factors of a head tensor by alternating least squares from `start`.

    If the heads are alike, a start in which each owns dimensions of its own is a saddle point, where no sweep lowers
    the error. A search that is stuck at once is therefore repeated from a perturbed start, and the better of the two is
    returned.

    Args:
        tensor: 𝒯.
        start: factors in ``concat`` or ``cp`` form; usually the closed-form ``concat`` ones.
        options: `max_sweeps`, `tolerance` and `ridge` apply.

    Returns:
        Factors in ``cp`` form whose error is at most that of `start`.
    """
    sweeper = _Sweeper(tensor)
    first = sweeper.measure(start.query, start.mixing, start.key, tensor.project_key(start.key))
    best, errors, converged = _descend(sweeper, first, options, options.max_sweeps)
    left = options.max_sweeps - (len(errors) - 1)
    if converged and len(errors) - 1 <= _PATIENCE and errors[-1] > options.tolerance and left > 0:
        beside, more, settled = _descend(sweeper, _beside(sweeper, best), options, left)
        reached = errors[-1]
        errors += [min(reached, error) for error in more[1:]]
        if more[-1] < reached - options.tolerance:
            best, converged = beside, settled
    factors = Factors("cp", query=best.query, key=best.key, mixing=best.mixing).canonical()
    logger.debug("CP: %d sweeps, relative error %.6f to %.6f", len(errors) - 1, errors[0], errors[-1])
    return Solution(factors, tuple(errors), converged, sweeps=len(errors) - 1)


def _descend(
    sweeper: _Sweeper, start: _Iterate, options: SolverOptions, max_sweeps: int
) -> tuple[_Iterate, list[float], bool]:
    """Sweeps until the error stops falling.

    Returns:
        The best iterate, the relative error at the start and after every sweep, and whether the sweeps converged.
    """
    best = previous = start
    sweeper.ridge = options.ridge * best.squared_error
    errors = [best.squared_error**0.5]
    converged, step, since = False, 0, 0
    while len(errors) <= max_sweeps and not converged:
        candidate = sweeper.sweep(*best.toward(previous, momentum=step / (step + 3)))
        stuck = False
        if (
            candidate.objective(sweeper.ridge) < best.objective(sweeper.ridge)
            and candidate.squared_error <= best.squared_error
        ):
            previous, best = best, candidate
            step += 1
        else:
            stuck = step == 0  # a plain sweep found nothing better
            previous, step = best, 0
        errors.append(best.squared_error**0.5)
        since += 1
        if stuck or (since >= _PATIENCE and errors[-1 - _PATIENCE] - errors[-1] < _PATIENCE * options.tolerance):
            ridge = options.ridge * best.squared_error
            converged = ridge >= sweeper.ridge / 2 or errors[-1] < options.tolerance
            sweeper.ridge, previous, step, since = ridge, best, 0, 0
    return best, errors, converged


def _beside(sweeper: _Sweeper, point: _Iterate) -> _Iterate:
    """A point with M and B perturbed by a tenth of their columns, with a fixed seed; A is solved for first."""
    generator = torch.Generator().manual_seed(0)

    def perturbed(factor: Tensor) -> Tensor:
        noise = torch.randn(factor.shape, generator=generator, dtype=torch.float64).to(factor)
        return factor + 0.1 * factor.norm(dim=0) / len(factor) ** 0.5 * noise

    mixing, key = perturbed(point.mixing), perturbed(point.key)
    return sweeper.measure(point.query, mixing, key, sweeper.tensor.project_key(key))
