"""Decompositions of layers with rotary positions: every frequency has a complex tensor of its own.

Rotary positions rotate dimensions j and j + F of a head, F = d/2, taken as one complex number, by an angle that grows
with the position. With w_q^{hf} and w_k^{hf} ∈ C^D the complex columns of head h at frequency f, the score of tokens
Δ positions apart is Σ_f Re(x w_q^{hf} · conj(y w_k^{hf}) · e^{iθ_fΔ}), and the errors to keep small are those of

    T_f[:, h, :] = w_q^{hf} (w_k^{hf})^H ∈ C^{D×H×D},

with slices of rank one. If θ_fΔ is spread over the circle, the mean squared error of a score is ½ Σ_f ‖ΔT_f‖², so the
frequencies are solved one by one. Each form has shared complex dimensions A_f, B_f ∈ C^{D×r_f}, and T_f[:, h, :] ≈
A_f G_{fh} B_f^H:

- ``concat``: the pairs of head and frequency of most energy are kept, the others dropped. Closed form.
- ``cp``: G diagonal and complex, by alternating least squares that start there, so with as many dimensions for each
  frequency as pairs would be kept.
- ``tucker``: a complex core for each head, by orthogonal iteration. Dimensions go to the frequencies with most to gain,
  as far as the cores, whose size grows with r_f², stay within `most_core_entries`.

A frequency has at most H dimensions, with which every form is exact. R counts real dimensions, two for a complex one.
"""

from __future__ import annotations

import math
import time

import torch
from torch import Tensor
from torch.nn import functional

from .concat import CONCAT
from .factors import Factors, Solution
from .form import Form
from .forms import form_named
from .head_tensor import HeadTensor
from .options import FormName, SolverOptions
from .rotary_factors import RotaryFactors, as_complex, as_real, compressed, pair_energy


def by_frequency(tensor: HeadTensor) -> tuple[Tensor, Tensor]:
    """The complex columns w_q^{hf} and w_k^{hf} of every frequency, (F, D, H) each."""

    def columns(factor: Tensor) -> Tensor:
        return as_complex(factor.unflatten(1, (tensor.num_heads, -1))).permute(2, 0, 1).contiguous()

    return columns(tensor.query), columns(tensor.key)


def head_decay(tensor: HeadTensor) -> Tensor:
    """Relative squared error if each head keeps so many of its dimensions, in pairs, from none to all, (d + 1,)."""
    energy = pair_energy(*by_frequency(tensor)).sort(dim=0, descending=True).values.sum(dim=1)  # (F,)
    left = torch.cat([energy.flip(0).cumsum(0).flip(0), energy.new_zeros(1)])  # (F + 1,)
    dimensions = torch.arange(tensor.head_dim + 1, device=left.device)
    return left[dimensions // 2] / left[0].clamp(min=torch.finfo(left.dtype).tiny)


def decompose_rotary(tensor: HeadTensor, form: FormName, rank: int, options: SolverOptions, biased: bool) -> Solution:
    """Decomposes the tensors of a layer with rotary positions.

    Args:
        tensor: queries and keys of the heads, as they are before they are rotated, in float64.
        form: ``concat``, ``cp`` or ``tucker``.
        rank: R from 1 to K; rounded down to a multiple of two, and at least two.
        options: `max_sweeps`, `tolerance`, `ridge` and `even_heads` apply.
        biased: whether the last row of both factors is a bias.
    """
    start_time = time.perf_counter()
    wanted = form_named(form)
    query, key = by_frequency(tensor)
    energy = pair_energy(query, key)  # (F, H)
    total = float(energy.sum())
    pairs = max(1, rank // 2)
    kept = torch.zeros_like(energy, dtype=torch.bool)
    if options.even_heads:
        kept.scatter_(0, energy.topk(max(1, pairs // tensor.num_heads), dim=0).indices, True)
    else:
        kept.view(-1)[energy.flatten().topk(pairs).indices] = True
    factors = _selected(query, key, kept, wanted if pairs == energy.numel() else CONCAT, biased)
    error = concat_error = relative_error(tensor, factors)
    sweeps, converged = 0, True
    if pairs < energy.numel() and total > 0 and not wanted.closed:
        factors, sweeps, converged = _solve(wanted, query, key, kept, pairs, options, biased)
        error = relative_error(tensor, factors)
    if wanted.starts_at_concat and error > concat_error:  # the ridge may cost more than the sweeps gain
        factors, error = _selected(query, key, kept, wanted, biased), concat_error
    return Solution(
        factors,
        sweeps=sweeps,
        converged=converged,
        error=error,
        concat_error=concat_error,
        degeneracy=factors.component_energy() / total if total > 0 else 0.0,
        head_dim=tensor.head_dim,
        seconds=time.perf_counter() - start_time,
    )


def relative_error(tensor: HeadTensor, factors: Factors) -> float:
    """√(Σ_f ‖T_f - T̂_f‖² / Σ_f ‖T_f‖²), accurate for tiny errors too."""
    assert isinstance(factors, RotaryFactors)
    queries, keys = by_frequency(tensor)
    squared = norm = 0.0
    for frequency, (query, key) in enumerate(zip(queries, keys, strict=True)):
        left, cores, right = factors.block(frequency)
        # In bases of both sides together, [e_h e_hᵀ, 0; 0, -G_h] is what is left of head h.
        left_triangle = torch.linalg.qr(torch.cat([query, left], dim=1), mode="r").R
        right_triangle = torch.linalg.qr(torch.cat([key, right], dim=1), mode="r").R
        heads = query.shape[1]
        own = torch.einsum("ih,jh->hij", left_triangle[:, :heads], right_triangle[:, :heads].conj())
        given = left_triangle[:, heads:] @ cores @ right_triangle[:, heads:].mH  # (H, ·, ·)
        squared += float((own - given).abs().square().sum())
        norm += float(own.abs().square().sum())
    return math.sqrt(squared / norm) if norm > 0 else math.sqrt(squared)


def rotary_decay(tensor: HeadTensor, form: FormName) -> Tensor:
    """Relative squared error at every rank from 0 to K in closed form, (K + 1,); see `decay`."""
    return form_named(form).rotary.decay(*by_frequency(tensor))


def _solve(
    form: Form, query: Tensor, key: Tensor, kept: Tensor, pairs: int, options: SolverOptions, biased: bool
) -> tuple[RotaryFactors, int, bool]:
    """Factors by sweeps, the most sweeps of any frequency, and whether all converged; arguments as in `_selected`."""
    small_query, query_basis = compressed(query)
    small_key, key_basis = compressed(key)
    sizes = form.rotary.sizes(kept, pairs, small_query, small_key)
    solved: dict[int, tuple[Tensor, Tensor, Tensor]] = {}
    sweeps, converged = 0, True
    for size in sorted({size for size in sizes if size}):
        alike = [frequency for frequency, other in enumerate(sizes) if other == size]
        *parts, done, settled = form.rotary.solve(small_query[alike], small_key[alike], size, options)
        sweeps, converged = max(sweeps, done), converged and settled
        for number, frequency in enumerate(alike):
            left, cores, right = (part[number] for part in parts)
            solved[frequency] = query_basis[frequency] @ left, cores, key_basis[frequency] @ right
    return _joined(form, solved, biased).canonical(), sweeps, converged


def _selected(query: Tensor, key: Tensor, kept: Tensor, form: Form, biased: bool) -> RotaryFactors:
    """The original columns of the pairs that are kept, (F, H): exact for these."""
    if form.rotary.by_head:
        head, frequency = kept.T.nonzero(as_tuple=True)
    else:
        frequency, head = kept.nonzero(as_tuple=True)
    owner = functional.one_hot(head, kept.shape[1]).T.to(query.real)  # (H, R/2)
    frequencies = tuple(frequency.tolist())
    mixing = form.rotary.owned(owner, frequencies)
    own, other = (as_real(side[frequency, :, head].T) for side in (query, key))  # (D, R)
    return RotaryFactors(form, own, other, mixing, frequencies=frequencies, biased=biased).canonical()


def _joined(form: Form, solved: dict[int, tuple[Tensor, Tensor, Tensor]], biased: bool) -> RotaryFactors:
    """Factors from A_f, the heads' cores and B_f of every frequency that has any; runs of equal width together."""
    order = sorted(solved, key=lambda frequency: (-solved[frequency][0].shape[1], frequency))
    queries, cores, keys = zip(*(solved[frequency] for frequency in order), strict=True)
    query, key = (as_real(torch.cat(side, dim=1)) for side in (queries, keys))
    frequencies = tuple(frequency for frequency in order for _ in range(solved[frequency][0].shape[1]))
    return RotaryFactors(form, query, key, form.rotary.mixing(cores), frequencies=frequencies, biased=biased)
