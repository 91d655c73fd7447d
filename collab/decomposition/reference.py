"""tensorly on the dense tensor: the reference that collab's solvers are tested and compared against.

`reference_cp` is what the reference implementation of the paper does (`parafac` from a random start). Both form 𝒯
densely, which takes D_q·H·D_k numbers, and `parafac` a Khatri-Rao product of D_q·D_k·R on top.
"""

from __future__ import annotations

import tensorly
import torch
from tensorly.decomposition import parafac, tucker

from .cp import CP
from .factors import Factors, Solution
from .head_tensor import HeadTensor
from .options import FormName, SolverOptions
from .tucker import Tucker


def reference(form: FormName, tensor: HeadTensor, rank: int, options: SolverOptions, seed: int) -> Solution:
    """Factors of a form that is not closed, by the function below for it."""
    solve = {CP.form: reference_cp, Tucker.form: reference_tucker}[form]
    return solve(tensor.to(options.dtype), rank, options, seed)


def reference_cp(tensor: HeadTensor, rank: int, options: SolverOptions, seed: int = 0) -> Solution:
    """CP factors by `tensorly.decomposition.parafac` from a random start.

    Args:
        tensor: 𝒯; formed densely on its device and in its dtype.
        rank: R.
        options: `max_sweeps` and `tolerance` apply.
        seed: random seed of the start.
    """
    with tensorly.backend_context("pytorch", local_threadsafe=True):
        cp, errors = parafac(
            tensor.dense(),
            rank,
            init="random",
            n_iter_max=options.max_sweeps,
            tol=options.tolerance,
            random_state=seed,
            return_errors=True,
        )
    weights, (query, mixing, key) = cp
    factors = CP(query, key, mixing * weights).canonical()
    return _solution(factors, errors, options)


def reference_tucker(tensor: HeadTensor, rank: int, options: SolverOptions, seed: int = 0) -> Solution:
    """Tucker factors by `tensorly.decomposition.tucker` (HOOI from the truncated higher-order SVD).

    Arguments are those of `reference_cp`, with `seed` for its randomized SVD. tensorly cannot represent more dimensions
    than the query and key inputs have; the others are zeros.
    """
    query_width, num_heads, key_width = tensor.shape
    query_rank, key_rank = min(rank, query_width), min(rank, key_width)
    with tensorly.backend_context("pytorch", local_threadsafe=True):
        (core, (query, heads, key)), errors = tucker(
            tensor.dense(),
            rank=[query_rank, num_heads, key_rank],
            n_iter_max=options.max_sweeps,
            tol=options.tolerance,
            random_state=seed,
            return_errors=True,
        )
    cores = torch.einsum("qgk,hg->hqk", core, heads)  # (H, R_q, R_k)
    return _solution(Tucker.padded(query, key, cores, rank), errors, options)


def _solution(factors: Factors, errors: list[torch.Tensor], options: SolverOptions) -> Solution:
    # tensorly says nothing when it stops at the limit, so the fall of its last sweep decides.
    history = tuple(float(error) for error in errors)
    converged = len(history) > 1 and abs(history[-2] - history[-1]) < options.tolerance
    return Solution(factors, history, converged, sweeps=len(history))
