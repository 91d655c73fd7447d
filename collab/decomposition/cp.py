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
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor
from torch.nn import functional

from .concat import Concat, RotaryConcat
from .factors import DiagonalFactors, Factors, Solution, balanced, safe
from .head_tensor import HeadTensor
from .options import SolverOptions
from .rotary_factors import Solved, SweptRotary, as_complex, as_real, pair_energy

logger = logging.getLogger(__name__)

_PATIENCE = 5  # sweeps over which the fall of the error is averaged, because momentum makes it uneven
_DAMPING = 1e-12  # keeps components of no energy solvable; relative to the mean of the Gram matrix's diagonal


class CP(DiagonalFactors):
    """A weight for every head and shared dimension: M is any matrix (Cordonnier et al. 2020, equation 9)."""

    form = "cp"
    sharing = "every head weights all of them by its row of the mixing matrix"
    starts_at_concat = True
    prediction_sweeps = 24

    @classmethod
    def solve(cls, tensor: HeadTensor, rank: int, concat: Factors, options: SolverOptions) -> Solution:
        return decompose_cp(tensor.to(options.dtype), concat.to(options.dtype), options)

    @classmethod
    def decay(cls, tensor: HeadTensor) -> Tensor:
        return Concat.decay(tensor)  # an upper bound

    def canonical(self) -> Self:
        """‖a_r‖ = ‖b_r‖ and ‖m_r‖ = 1; the largest entry of m_r is positive; components by falling energy.

        So M says only how heads share, and the projections keep the scale of the original weights.
        """
        mixing = self.mixing
        largest = mixing.gather(0, mixing.abs().argmax(dim=0, keepdim=True))  # (1, R)
        norm = safe(mixing.norm(dim=0)) * torch.where(largest < 0, -1.0, 1.0).squeeze(0).to(mixing.dtype)
        query, key, energy = balanced(self.query * norm, self.key)
        order = energy.argsort(descending=True, stable=True)
        return self.of_heads(*(part[:, order].contiguous() for part in (query, key, mixing / norm)))


class RotaryCP(SweptRotary, CP):
    """Complex diagonals for every frequency, by alternating least squares from the pairs that ``concat`` keeps."""

    def cores_at(self, frequency: int) -> Tensor:
        return torch.diag_embed(as_complex(self.mixing)[:, self.places(frequency)])

    @classmethod
    def stored(cls, cores: Sequence[Tensor]) -> Tensor:
        return as_real(torch.cat([each.diagonal(dim1=1, dim2=2) for each in cores], dim=-1))

    def canonical(self) -> Self:
        """‖a_r‖ = ‖b_r‖ and ‖m_r‖ = 1."""
        norm = self.norms(self.mixing)  # (R,)
        return self.of_heads(*self.balanced_pairs(norm), self.mixing / safe(norm))

    @classmethod
    def decay(cls, tensor: HeadTensor) -> Tensor:
        return RotaryConcat.decay(tensor)  # an upper bound

    @classmethod
    def solve_alike(cls, query: Tensor, key: Tensor, size: int, options: SolverOptions) -> Solved:
        # The objective has the same ridge as that of real factors.
        energy = pair_energy(query, key)  # (F', H)
        total = safe(energy.sum(dim=1))  # (F',)
        top = energy.topk(size, dim=1).indices  # (F', r)
        left = query.gather(2, top.unsqueeze(1).expand(-1, query.shape[1], -1))
        right = key.gather(2, top.unsqueeze(1).expand(-1, key.shape[1], -1))
        mixing = functional.one_hot(top, energy.shape[1]).mT.to(query.dtype)  # (F', H, r)
        error = (1 - energy.gather(1, top).sum(dim=1) / total).clamp(min=0)  # squared and relative, (F',)
        errors = [error.sqrt()]
        done, converged = 0, False
        while done < options.max_sweeps and not converged:
            ridge = options.ridge * error
            left = _complex_solved(
                query @ (key.mH @ right * mixing.conj()), (mixing.mT @ mixing.conj()) * (right.mH @ right), ridge
            )
            query_gram = left.mH @ left
            right = _complex_solved(key @ (query.mH @ left * mixing), (mixing.mH @ mixing) * query_gram, ridge)
            gram = query_gram * (right.mH @ right).conj()
            inner = (left.mH @ query) * (right.mH @ key).conj()  # ⟨a_r b_r^H, A_h⟩, (F', r, H)
            mixing = _complex_solved(inner.mT, gram.mT, ridge)
            fitted = (mixing.mT.conj() * inner).sum(dim=(1, 2)).real
            square = (mixing.conj() * (mixing @ gram.mT)).sum(dim=(1, 2)).real
            error = (1 - (2 * fitted - square) / total).clamp(min=0)
            left, right = _complex_balanced(left, right)
            done += 1
            errors.append(error.sqrt())
            converged = done >= _PATIENCE and bool(
                (errors[-1 - _PATIENCE] - errors[-1] < _PATIENCE * options.tolerance).all()
            )
        return left, torch.diag_embed(mixing), right, done, converged


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
    factors = CP(best.query, best.key, best.mixing).canonical()
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


def _complex_solved(target: Tensor, gram: Tensor, ridge: Tensor) -> Tensor:
    """X with X (Γ + ridge diag(Γ)) = target, for every frequency."""
    diagonal = gram.diagonal(dim1=1, dim2=2).real
    damping = ridge.unsqueeze(1) * diagonal + _DAMPING * diagonal.mean(dim=1, keepdim=True)
    damping = torch.where(diagonal.sum(dim=1, keepdim=True) > 0, damping, torch.ones_like(damping))
    return torch.linalg.solve(gram + torch.diag_embed(damping), target, left=False)


def _complex_balanced(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """The same components with ‖a_r‖ = ‖b_r‖."""
    left_norm, right_norm = (safe(side.norm(dim=1, keepdim=True)) for side in (left, right))
    common = (left_norm * right_norm).sqrt()
    return left * (common / left_norm), right * (common / right_norm)
