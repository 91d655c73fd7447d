"""Decomposes a head tensor into factors of a given form and rank, with their errors, and predicts those at any rank."""

from __future__ import annotations

import time
from dataclasses import replace

import torch
from torch.nn import functional

from ..errors import RankError
from .concat import Concat, decompose_concat
from .factors import Factors, Solution
from .forms import form_named
from .head_tensor import HeadTensor
from .options import FormName, SolverOptions


def decompose(
    tensor: HeadTensor, form: FormName, rank: int, options: SolverOptions | None = None, seed: int = 0
) -> Solution:
    """Decomposes a head tensor.

    At ``rank = K`` every form is the original weights rewritten, exact to rounding, and nothing is iterated.

    Args:
        tensor: 𝒯 in any floating dtype and on any device.
        form: ``concat``, ``cp`` or ``tucker``.
        rank: R, the number of shared query/key dimensions, from 1 to K.
        options: solver settings.
        seed: random seed of the ``tensorly`` method; the structured solvers are deterministic.

    Returns:
        The solution in float64, on the device it was solved on.

    Raises:
        ConfigurationError: for an unknown form.
        RankError: if the rank is not between 1 and K.
        DeviceError: if the requested device is not available.
    """
    options = options or SolverOptions()
    wanted = form_named(form)
    if not 1 <= rank <= tensor.full_rank:
        raise RankError(
            f"Rank {rank} is not between 1 and {tensor.full_rank}, the number of query/key dimensions of the original "
            f"layer ({tensor.num_heads} heads of {tensor.head_dim}), at which every form is exact already."
        )
    tensor = tensor.to(options.resolve_device(tensor.query.device), torch.float64)
    norm_squared = tensor.norm_squared()
    start_time = time.perf_counter()
    if rank == tensor.full_rank or norm_squared == 0:
        solution = Solution(full_rank_factors(tensor, form, rank))
        concat = full_rank_factors(tensor, Concat.form, rank)
    else:
        solution, concat = _solve(tensor, wanted, rank, options, seed)
    seconds = time.perf_counter() - start_time
    error = solution.factors.relative_error(tensor)
    concat_error = error if wanted.closed else concat.relative_error(tensor)
    swept = solution.sweeps and options.method == "structured"
    if wanted.starts_at_concat and swept and error > concat_error:
        # Sweeps in float32 cannot follow a start that is exact beyond float32.
        solution = replace(solution, factors=wanted.diagonal(concat.query, concat.key, concat.mixing).canonical())
        error = concat_error
    return replace(
        solution,
        error=error,
        concat_error=concat_error,
        degeneracy=solution.factors.component_energy() / norm_squared if norm_squared > 0 else 0.0,
        head_dim=tensor.head_dim,
        seconds=seconds,
    )


def decay(tensor: HeadTensor, form: FormName) -> torch.Tensor:
    """Relative squared error at every rank from 0 to K, in closed form.

    It is exact for ``concat``. For ``cp`` it is the error of ``concat``, an upper bound, as the sweeps start there.
    For ``tucker`` it is the error of the side that is harder to capture, a lower bound for all factors.

    Returns:
        Shape (K + 1,), falling from 1 to 0.
    """
    return form_named(form).decay(tensor)


def full_rank_factors(tensor: HeadTensor, form: FormName, rank: int) -> Factors:
    """The original weights in any form: the member of every family with R = K.

    `rank` is below K only for a tensor of zeros, for which any columns are exact.
    """
    owner = torch.arange(rank, device=tensor.query.device) // tensor.head_dim  # (R,) the head of each dimension
    owners = functional.one_hot(owner, tensor.num_heads).T.contiguous().to(tensor.query)  # (H, R)
    return form_named(form).diagonal(tensor.query[:, :rank].clone(), tensor.key[:, :rank].clone(), owners)


def _solve(
    tensor: HeadTensor, form: type[Factors], rank: int, options: SolverOptions, seed: int
) -> tuple[Solution, Factors]:
    """A solution, and the ``concat`` factors at the same rank.

    What is solved is no wider than K (`HeadTensor.compress`), and its factors have norm one.
    """
    small, query_basis, key_basis = tensor.compress()
    query_norm, key_norm = float(small.query.norm()), float(small.key.norm())
    small = HeadTensor(small.query / query_norm, small.key / key_norm, tensor.num_heads)

    def restored(factors: Factors) -> Factors:
        query = factors.query if query_basis is None else query_basis @ factors.query
        key = factors.key if key_basis is None else key_basis @ factors.key
        scale = query.new_full((factors.num_heads,), query_norm * key_norm)
        return replace(factors, query=query, key=key).scale_heads(scale).canonical()

    concat = decompose_concat(small, rank, options.even_heads and form.separate)  # others share their dimensions
    if form.closed:
        solution = Solution(restored(concat))
        return solution, solution.factors
    if options.method == "structured":
        solution = form.solve(small, rank, concat, options)
    else:
        from .reference import reference  # tensorly is slow to import

        solution = reference(form.form, small, rank, options, seed)
    return replace(solution, factors=restored(solution.factors.to(torch.float64).canonical())), restored(concat)
