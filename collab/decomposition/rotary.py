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
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from .decay import tail
from .factors import Factors, Solution, safe
from .head_tensor import HeadTensor
from .options import Form, SolverOptions

_PATIENCE = 5  # sweeps over which the fall of the error is averaged
_UNEVEN = 1.25
_DAMPING = 1e-12  # keeps components of no energy solvable; relative to the mean of the Gram matrix's diagonal


@dataclass(frozen=True)
class RotaryFactors(Factors):
    """Shared complex dimensions of a layer with rotary positions, as real numbers: real parts, then imaginary ones.

    Attributes:
        query: (D, R), of which columns j and j + R/2 are one complex dimension. With biases, the last row is theirs.
        key: the same for the keys.
        mixing: (H, R), complex in the ``cp`` form, 0 and 1 in the ``concat`` form; in the ``tucker`` form
            (H, Σ_f 2 r_f²), for each frequency the real and then the imaginary part of the core, (r_f, r_f).
        frequencies: the frequency of each of the R/2 complex dimensions; equal ones are neighbours in the ``cp`` and
            ``tucker`` forms, in the ``concat`` form the dimensions are ordered by head.
        biased: whether inputs have a last entry that is always 1.
    """

    frequencies: tuple[int, ...] = ()
    biased: bool = False

    def block(self, frequency: int) -> tuple[Tensor, Tensor, Tensor]:
        """A_f (D, r_f), the heads' cores (H, r_f, r_f) and B_f (D, r_f), complex."""
        places = [place for place, other in enumerate(self.frequencies) if other == frequency]
        query, key = as_complex(self.query)[:, places], as_complex(self.key)[:, places]
        if self.form == "tucker":
            empty = query.new_zeros(self.num_heads, 0, 0)
            return query, self._cores().get(frequency, empty), key
        half = self.rank // 2
        mixing = as_complex(self.mixing) if self.form == "cp" else self.mixing[:, :half].to(query.dtype)
        return query, torch.diag_embed(mixing[:, places]), key

    def _cores(self) -> dict[int, Tensor]:
        """The cores of every frequency, (H, r_f, r_f) each."""
        cores, read = {}, 0
        for frequency in dict.fromkeys(self.frequencies):
            size = self.frequencies.count(frequency)
            numbers = self.mixing[:, read : read + 2 * size**2].unflatten(-1, (2, size, size))
            cores[frequency] = torch.complex(numbers[:, 0], numbers[:, 1])
            read += 2 * size**2
        return cores

    def head(self, h: int) -> Tensor:
        """Σ_f Re T̂_f[:, h, :], (D, D): what the head scores two tokens at the same position by."""
        blocks = (self.block(frequency) for frequency in dict.fromkeys(self.frequencies))
        return torch.stack([(query @ cores[h] @ key.mH).real for query, cores, key in blocks]).sum(dim=0)

    def component_energy(self) -> float:
        """Σ ‖a_r ∘ m_r ∘ b_r‖², as for other layers."""
        energy = 0.0
        for frequency in dict.fromkeys(self.frequencies):
            query, cores, key = (part.abs().square() for part in self.block(frequency))
            energy += float(torch.einsum("r,hrs,s->", query.sum(dim=0), cores, key.sum(dim=0)))
        return energy

    def canonical(self) -> RotaryFactors:
        """The same heads in a fixed gauge: norms as in `Factors.canonical`, of complex dimensions."""
        query_norm, key_norm = (_pair_norms(part) for part in (self.query, self.key))  # (R,)
        if self.form == "tucker":
            blocks = []
            for frequency, cores in self._cores().items():
                places = [place for place, other in enumerate(self.frequencies) if other == frequency]
                scaled = cores * safe(query_norm[places])[:, None] * safe(key_norm[places])
                blocks.append(_as_row(scaled))
            mixing = torch.cat(blocks, dim=-1)
            scale = (mixing.norm() / self.rank**0.5).sqrt()
            if scale == 0:
                return self
            query, key = self.query * (scale / safe(query_norm)), self.key * (scale / safe(key_norm))
            return replace(self, query=query, key=key, mixing=mixing / scale**2)
        norm = _pair_norms(self.mixing) if self.form == "cp" else torch.ones_like(query_norm)
        common = (query_norm * norm * key_norm).sqrt()
        return replace(
            self,
            query=self.query * (common / safe(query_norm)),
            key=self.key * (common / safe(key_norm)),
            mixing=self.mixing / safe(norm),
        )


def as_complex(columns: Tensor) -> Tensor:
    """(…, R) real → (…, R/2) complex."""
    real, imaginary = columns.chunk(2, dim=-1)
    return torch.complex(real.contiguous(), imaginary.contiguous())


def as_real(columns: Tensor) -> Tensor:
    """(…, R/2) complex → (…, R) real."""
    return torch.cat([columns.real, columns.imag], dim=-1)


def by_frequency(tensor: HeadTensor) -> tuple[Tensor, Tensor]:
    """The complex columns w_q^{hf} and w_k^{hf} of every frequency, (F, D, H) each."""

    def columns(factor: Tensor) -> Tensor:
        return as_complex(factor.unflatten(1, (tensor.num_heads, -1))).permute(2, 0, 1).contiguous()

    return columns(tensor.query), columns(tensor.key)


def head_decay(tensor: HeadTensor) -> Tensor:
    """Relative squared error if each head keeps so many of its dimensions, in pairs, from none to all, (d + 1,)."""
    energy = _energy(*by_frequency(tensor)).sort(dim=0, descending=True).values.sum(dim=1)  # (F,)
    left = torch.cat([energy.flip(0).cumsum(0).flip(0), energy.new_zeros(1)])  # (F + 1,)
    dimensions = torch.arange(tensor.head_dim + 1, device=left.device)
    return left[dimensions // 2] / left[0].clamp(min=torch.finfo(left.dtype).tiny)


def decompose_rotary(tensor: HeadTensor, form: Form, rank: int, options: SolverOptions, biased: bool) -> Solution:
    """Decomposes the tensors of a layer with rotary positions.

    Args:
        tensor: queries and keys of the heads, as they are before they are rotated, in float64.
        form: ``concat``, ``cp`` or ``tucker``.
        rank: R from 1 to K; rounded down to a multiple of two, and at least two.
        options: `max_sweeps`, `tolerance`, `ridge` and `even_heads` apply.
        biased: whether the last row of both factors is a bias.
    """
    start_time = time.perf_counter()
    query, key = by_frequency(tensor)
    energy = _energy(query, key)  # (F, H)
    pairs = max(1, rank // 2)
    kept = torch.zeros_like(energy, dtype=torch.bool)
    if options.even_heads:
        kept.scatter_(0, energy.topk(max(1, pairs // tensor.num_heads), dim=0).indices, True)
    else:
        kept.view(-1)[energy.flatten().topk(pairs).indices] = True
    concat = _selected(query, key, kept, form if pairs == energy.numel() else "concat", biased)
    concat_error = relative_error(tensor, concat)
    factors, sweeps, converged = concat, 0, True
    total = float(energy.sum())
    if pairs < energy.numel() and total > 0 and form != "concat":
        small_query, query_basis = _compressed(query)
        small_key, key_basis = _compressed(key)
        sizes = kept.sum(dim=1).tolist() if form == "cp" else _dealt(pairs, small_query, small_key)
        solved: dict[int, tuple[Tensor, Tensor, Tensor]] = {}
        for size in sorted({size for size in sizes if size}):
            alike = [frequency for frequency, other in enumerate(sizes) if other == size]
            solve = _cp if form == "cp" else _tucker
            *parts, done, settled = solve(small_query[alike], small_key[alike], size, options)
            sweeps, converged = max(sweeps, done), converged and settled
            for number, frequency in enumerate(alike):
                left, cores, right = (part[number] for part in parts)
                solved[frequency] = query_basis[frequency] @ left, cores, key_basis[frequency] @ right
        factors = _joined(form, solved, biased).canonical()
    error = relative_error(tensor, factors)
    if form == "cp" and error > concat_error:  # the ridge may cost more than the sweeps gain
        factors = _selected(query, key, kept, "cp", biased)
        error = concat_error
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


def rotary_decay(tensor: HeadTensor, form: Form) -> Tensor:
    """Relative squared error at every rank from 0 to K in closed form, (K + 1,); see `decay`."""
    query, key = by_frequency(tensor)
    energy = _energy(query, key)  # (F, H)
    if form == "tucker":
        small_query, _ = _compressed(query)
        small_key, _ = _compressed(key)
        sides = [_side(*pair) for pair in ((small_query, small_key), (small_key, small_query))]
        energies = [side.flatten().sort(descending=True).values for side in sides]
        return torch.maximum(*(tail((side / 2).repeat_interleave(2)) for side in energies))
    return tail((energy.flatten().sort(descending=True).values / 2).repeat_interleave(2))


def _energy(query: Tensor, key: Tensor) -> Tensor:
    """‖w_q^{hf} (w_k^{hf})^H‖² of every frequency and head, (F, H)."""
    return query.abs().square().sum(dim=1) * key.abs().square().sum(dim=1)


def _selected(query: Tensor, key: Tensor, kept: Tensor, form: Form, biased: bool) -> RotaryFactors:
    """The original columns of the pairs that are kept, (F, H): exact for these."""
    if form == "concat":
        head, frequency = kept.T.nonzero(as_tuple=True)  # by head
    else:
        frequency, head = kept.nonzero(as_tuple=True)
    heads = kept.shape[1]
    owner = functional.one_hot(head, heads).T.to(query.real)  # (H, R/2)
    mixing = torch.cat([owner, owner if form == "concat" else torch.zeros_like(owner)], dim=1)
    frequencies = tuple(frequency.tolist())
    if form == "tucker":
        cores = [torch.diag_embed(owner[:, frequency == number]) for number in dict.fromkeys(frequencies)]
        mixing = torch.cat([_as_row(core.to(query.dtype)) for core in cores], dim=-1)
    own, other = (as_real(side[frequency, :, head].T) for side in (query, key))  # (D, R)
    return RotaryFactors(form, own, other, mixing, frequencies=frequencies, biased=biased).canonical()


def _joined(form: Form, solved: dict[int, tuple[Tensor, Tensor, Tensor]], biased: bool) -> RotaryFactors:
    """Factors from A_f, the heads' cores and B_f of every frequency that has any; runs of equal width together."""
    order = sorted(solved, key=lambda frequency: (-solved[frequency][0].shape[1], frequency))
    parts = [solved[frequency] for frequency in order]
    query, key = (as_real(torch.cat([part[side] for part in parts], dim=1)) for side in (0, 2))
    if form == "tucker":
        mixing = torch.cat([_as_row(cores) for _, cores, _ in parts], dim=-1)
    else:
        mixing = as_real(torch.cat([cores.diagonal(dim1=1, dim2=2) for _, cores, _ in parts], dim=-1))
    frequencies = tuple(frequency for frequency in order for _ in range(solved[frequency][0].shape[1]))
    return RotaryFactors(form, query, key, mixing, frequencies=frequencies, biased=biased)


def _as_row(cores: Tensor) -> Tensor:
    """Complex cores (H, r, r) as real numbers, (H, 2 r²)."""
    return torch.stack([cores.real, cores.imag], dim=1).flatten(1)


def _compressed(columns: Tensor) -> tuple[Tensor, Tensor]:
    """Columns (F, D, H) in an orthonormal basis of their span, (F, H, H), and the basis, (F, D, H)."""
    basis, triangle = torch.linalg.qr(columns)
    return triangle, basis


def most_core_entries(pairs: int, frequencies: int, num_heads: int) -> int:
    """The most entries Σ_f r_f² that the core of a head has with Σ_f r_f = `pairs`: a quarter above the fewest."""
    fewest = pairs**2 / frequencies
    return min(math.ceil(_UNEVEN * fewest) + frequencies, pairs * num_heads)


def _dealt(pairs: int, query: Tensor, key: Tensor) -> list[int]:
    """Complex dimensions of every frequency in the ``tucker`` form, to those with most to gain, one by one."""
    count, _, heads = query.shape
    gain = (_side(query, key) + _side(key, query)).flatten()  # (F·H,)
    room = most_core_entries(pairs, count, heads)
    sizes = [0] * count
    for place in gain.argsort(descending=True, stable=True).tolist():
        frequency = place // heads
        more = 2 * sizes[frequency] + 1  # (r + 1)² - r²
        left = pairs - sum(sizes)
        if left and more <= room - (left - 1):  # each of the others takes at least one
            sizes[frequency] += 1
            room -= more
    return sizes


def _side(own: Tensor, other: Tensor) -> Tensor:
    """Eigenvalues of Σ_h T_f[:, h, :] T_f[:, h, :]^H of every frequency, falling, (F, H)."""
    weighted = own * other.abs().square().sum(dim=1, keepdim=True)
    values = torch.linalg.eigvalsh(weighted @ own.mH).clamp(min=0).flip(-1)
    return torch.nn.functional.pad(values, (0, own.shape[2] - values.shape[-1]))


def _cp(query: Tensor, key: Tensor, size: int, options: SolverOptions) -> tuple[Tensor, Tensor, Tensor, int, bool]:
    """Complex CP factors of several frequencies by alternating least squares, from the heads of most energy.

    The objective has the same ridge as the real form's (`collab.decomposition.cp`).

    Args:
        query: (F', ·, H).
        key: (F', ·, H).
        size: r.
        options: solver settings.

    Returns:
        A (F', ·, r), diagonal cores (F', H, r, r), B (F', ·, r), the number of sweeps, and whether they converged.
    """
    energy = _energy(query, key)  # (F', H)
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
        left = _solved(
            query @ (key.mH @ right * mixing.conj()), (mixing.mT @ mixing.conj()) * (right.mH @ right), ridge
        )
        query_gram = left.mH @ left
        right = _solved(key @ (query.mH @ left * mixing), (mixing.mH @ mixing) * query_gram, ridge)
        gram = query_gram * (right.mH @ right).conj()
        inner = (left.mH @ query) * (right.mH @ key).conj()  # ⟨a_r b_r^H, A_h⟩, (F', r, H)
        mixing = _solved(inner.mT, gram.mT, ridge)
        fitted = (mixing.mT.conj() * inner).sum(dim=(1, 2)).real
        square = (mixing.conj() * (mixing @ gram.mT)).sum(dim=(1, 2)).real
        error = (1 - (2 * fitted - square) / total).clamp(min=0)
        left, right = _balanced(left, right)
        done += 1
        errors.append(error.sqrt())
        converged = done >= _PATIENCE and bool(
            (errors[-1 - _PATIENCE] - errors[-1] < _PATIENCE * options.tolerance).all()
        )
    return left, torch.diag_embed(mixing), right, done, converged


def _solved(target: Tensor, gram: Tensor, ridge: Tensor) -> Tensor:
    """X with X (Γ + ridge diag(Γ)) = target, for every frequency."""
    diagonal = gram.diagonal(dim1=1, dim2=2).real
    damping = ridge.unsqueeze(1) * diagonal + _DAMPING * diagonal.mean(dim=1, keepdim=True)
    damping = torch.where(diagonal.sum(dim=1, keepdim=True) > 0, damping, torch.ones_like(damping))
    return torch.linalg.solve(gram + torch.diag_embed(damping), target, left=False)


def _balanced(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """The same components with ‖a_r‖ = ‖b_r‖."""
    left_norm, right_norm = (safe(side.norm(dim=1, keepdim=True)) for side in (left, right))
    common = (left_norm * right_norm).sqrt()
    return left * (common / left_norm), right * (common / right_norm)


def _tucker(query: Tensor, key: Tensor, size: int, options: SolverOptions) -> tuple[Tensor, Tensor, Tensor, int, bool]:
    """Complex Tucker factors of several frequencies by orthogonal iteration; arguments and result as in `_cp`."""
    total = safe(_energy(query, key).sum(dim=1))
    right = key
    captured = torch.zeros_like(total)
    done, converged = 0, False
    while done < options.max_sweeps and not converged:
        left = _leading(query, key.mH @ right, size)
        right = _leading(key, query.mH @ left, size)
        cores = torch.einsum("frh,fsh->fhrs", left.mH @ query, (right.mH @ key).conj())
        before, captured = captured, cores.abs().square().sum(dim=(1, 2, 3)) / total
        done += 1
        errors = ((1 - part).clamp(min=0).sqrt() for part in (before, captured))
        converged = done > 1 and bool((next(errors) - next(errors) < options.tolerance).all())
    return left, cores, right, done, converged


def _leading(own: Tensor, projected: Tensor, size: int) -> Tensor:
    """Leading eigenvectors of Σ_h a_h a_h^H ‖b_h^H B‖², given b_h^H B, (F', H, n)."""
    weight = projected.abs().square().sum(dim=2)  # (F', H)
    _, vectors = torch.linalg.eigh(own * weight.unsqueeze(1) @ own.mH)
    return vectors[..., -size:].flip(-1)


def _pair_norms(columns: Tensor) -> Tensor:
    """Norm of each complex dimension, for both of its columns, (R,)."""
    return torch.hypot(*columns.norm(dim=0).chunk(2)).repeat(2)
