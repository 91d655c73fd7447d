"""Decompositions of layers with rotary positions: every frequency has a complex tensor of its own.

Rotary positions rotate dimensions j and j + F of a head, F = d/2, taken as one complex number, by an angle that grows
with the position. With w_q^{hf} and w_k^{hf} ∈ C^D the complex columns of head h at frequency f, the score of tokens
Δ positions apart is Σ_f Re(x w_q^{hf} · conj(y w_k^{hf}) · e^{iθ_fΔ}), and the errors to keep small are those of

    T_f[:, h, :] = w_q^{hf} (w_k^{hf})^H ∈ C^{D×H×D},

with slices of rank one. If θ_fΔ is spread over the circle, the mean squared error of a score is ½ Σ_f ‖ΔT_f‖², so the
frequencies are solved one by one. Each form has shared complex dimensions A_f, B_f ∈ C^{D×r_f}, and T_f[:, h, :] ≈
A_f G_{fh} B_f^H:

- ``concat`` keeps the pairs of head and frequency of most energy and drops the others, in closed form.
- ``cp`` starts there, so a frequency has as many dimensions as pairs would be kept; its G are diagonal and complex.
- ``tucker`` has a complex core for each head, and divides dimensions among the frequencies by itself.

A frequency has at most H dimensions, with which every form is exact. R counts real dimensions, two for a complex one.
"""

from __future__ import annotations

import time
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional

from .concat import RotaryConcat
from .factors import Solution
from .forms import rotary_form_named
from .head_tensor import HeadTensor
from .options import FormName, SolverOptions
from .rotary_factors import RotaryFactors, as_real, by_frequency, pair_energy


def decompose_rotary(tensor: HeadTensor, form: FormName, rank: int, options: SolverOptions, biased: bool) -> Solution:
    """Decomposes the tensors of a layer with rotary positions.

    Args:
        tensor: queries and keys of the heads, as they are before they are rotated, in float64.
        form: ``concat``, ``cp`` or ``tucker``.
        rank: R from 1 to K; rounded down to a multiple of two, and at least two.
        options: `max_sweeps`, `tolerance`, `ridge` and, to ``concat``, `even_heads` apply.
        biased: whether the last row of both factors is a bias.
    """
    start_time = time.perf_counter()
    wanted = rotary_form_named(form)
    energy = pair_energy(*by_frequency(tensor))  # (F, H)
    total = float(energy.sum())
    pairs = max(1, rank // 2)
    kept = torch.zeros_like(energy, dtype=torch.bool)
    # Shared dimensions would only be fewer, and of fewer pairs than heads not every head can have one.
    if options.even_heads and wanted.separate and pairs >= tensor.num_heads:
        kept.scatter_(0, energy.topk(pairs // tensor.num_heads, dim=0).indices, True)
    else:
        kept.view(-1)[energy.flatten().topk(pairs).indices] = True
    solution = Solution(_selected(tensor, kept, wanted if pairs == energy.numel() else RotaryConcat, biased))
    error = concat_error = solution.factors.relative_error(tensor)
    if pairs < energy.numel() and total > 0 and not wanted.closed:
        solution = wanted.solve(tensor, 2 * pairs, solution.factors, options)
        error = solution.factors.relative_error(tensor)
    if wanted.starts_at_concat and error > concat_error:  # the ridge may cost more than the sweeps gain
        solution, error = replace(solution, factors=_selected(tensor, kept, wanted, biased)), concat_error
    return replace(
        solution,
        error=error,
        concat_error=concat_error,
        degeneracy=solution.factors.component_energy() / total if total > 0 else 0.0,
        head_dim=tensor.head_dim,
        seconds=time.perf_counter() - start_time,
    )


def _selected(tensor: HeadTensor, kept: Tensor, form: type[RotaryFactors], biased: bool) -> RotaryFactors:
    """The original columns of the pairs that are kept, (F, H): exact for these."""
    if form.separate:
        head, frequency = kept.T.nonzero(as_tuple=True)
    else:
        frequency, head = kept.nonzero(as_tuple=True)
    owner = functional.one_hot(head, kept.shape[1]).T.to(tensor.query)  # (H, R/2)
    frequencies = tuple(frequency.tolist())
    query, key = (as_real(side[frequency, :, head].T) for side in by_frequency(tensor))  # (D, R)
    mixing = form.owned(owner, frequencies)
    return form(query, key, mixing, frequencies=frequencies, biased=biased).canonical()
