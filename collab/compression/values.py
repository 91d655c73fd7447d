"""Heads with narrower values, in closed form.

Head h contributes v_h W_O^h, v_h (d values attended to) with covariance C_h. Of its r-dimensional parts, the one with
the least error in the metric G of the output is given by the first r left singular vectors of C_h^{1/2} W_O^h G^{1/2}.
Heads that share values share their directions: C_h is then the mean of theirs, and their W_O^h stand side by side.
W_O and b_O of all heads are then refitted together by least squares. Attention weights sum to one, so the value bias
goes into b_O exactly. Where there is no b_O, the value bias is narrowed like the values, and nothing is centred.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor, nn

from ..modeling.collab_attention import CollaborativeAttention
from .blocks import Attention
from .statistics import ProjectionStatistics, ridged
from .widths import Narrowed, Narrowing, step_of_head, widths_below

_RIDGE = 1e-6


class NarrowValues(Narrowing):
    """Values and output projection of an attention layer, with fewer dimensions for each head.

    Args:
        attention: the layer's names.
        layer: the attention layer.
        output: its output projection W_O.
        statistics: of the output projection.
        length: tokens of a row.
    """

    def __init__(
        self,
        attention: Attention,
        layer: CollaborativeAttention,
        output: nn.Linear,
        statistics: ProjectionStatistics,
        length: int,
    ) -> None:
        assert isinstance(layer.value, nn.Linear)
        self._attention, self._value, self._output = attention, layer.value, output
        self._heads, self._width = layer.num_attention_heads, layer.value_width
        self._shared = layer.value.out_features // layer.value_width  # H, or fewer
        self._statistics = statistics
        self._length = length

    @property
    def widths(self) -> Sequence[int]:
        """The values of a head, and seven or more steps below."""
        step = step_of_head(self._width)
        return widths_below(self._width, step, step)

    def predicted(self, width: int) -> float:
        """See `Narrowing`."""
        _, energy = self._spectra
        return float(energy[:, width:].sum())

    def flops(self, width: int) -> float:
        """See `Narrowing`; includes the sums over the keys."""
        return 2 * (self._weights(width) * self._length + self._length**2 * self._heads * width)

    def parameters(self, width: int) -> float:
        """See `Narrowing`."""
        return self._weights(width) + (self._shared * width if self._value.bias is not None else 0)

    def step_parameters(self, width: int) -> float:
        """See `Narrowing`: the values of another sequence are there from the first step on."""
        if self._attention.kind != "cross":
            return self.parameters(width)
        return self._output.out_features * self._heads * width

    def _weights(self, width: int) -> int:
        return (self._value.in_features * self._shared + self._output.out_features * self._heads) * width

    def narrow(self, width: int) -> Narrowed:
        """See `Narrowing`."""
        bases, _ = self._spectra
        own = torch.block_diag(*bases[:, :, :width])  # of each of the S values, (S·d, S·r)
        values = own.T @ self._value.weight.detach().double().cpu()  # (S·r, D)
        basis = torch.block_diag(*self._of_heads(bases[:, :, :width]))  # P, (H·d, H·r)
        weight = self._output.weight.detach().double().T.cpu()  # W_O, (H·d, D)
        covariance = self._statistics.covariance.cpu()
        inner = basis.T @ covariance @ basis  # (H·r, H·r)
        refitted = torch.linalg.solve(ridged(inner, _RIDGE), basis.T @ covariance @ weight)  # (H·r, D)
        mean = self._statistics.mean.cpu()
        bias = self._value.bias
        without_bias = mean
        if bias is not None:
            without_bias = mean - self._of_heads(bias.detach().double().cpu().view(self._shared, -1)).flatten()
        shift = mean @ weight - (without_bias @ basis) @ refitted  # (D,)
        # Rows as large as the original's, so that training treats them alike.
        size = self._value.weight.detach().double().cpu().square().mean().sqrt()
        scale = size / values.square().mean(1).sqrt().clamp(min=1e-12)  # (S·r,)
        scale = scale if size > 0 else torch.ones_like(scale)  # of values that are all zero
        of_heads = self._of_heads(scale.view(self._shared, -1)).flatten()  # (H·r,)
        attention, like = self._attention, self._value.weight
        tensors = {
            f"{attention.name}.value.weight": (values * scale.unsqueeze(1)).to(like),
            f"{attention.output}.weight": (refitted / of_heads.unsqueeze(1)).T.contiguous().to(like),
        }
        if bias is not None:
            kept = torch.zeros(len(values)) if self._output.bias is not None else own.T @ bias.detach().double().cpu()
            tensors[f"{attention.name}.value.bias"] = (kept * scale).to(like)
        if self._output.bias is not None:
            tensors[f"{attention.output}.bias"] = self._output.bias.detach() + shift.to(like)
        return Narrowed(tensors, attention=attention.name, spec={"value_width": width})

    @cached_property
    def _spectra(self) -> tuple[Tensor, Tensor]:
        """For each of S values, directions of unit variance, (S, d, d), and the energy that each explains, (S, d)."""
        covariance = self._statistics.covariance.cpu()
        root = self._statistics.metric_root.cpu()
        weight = self._output.weight.detach().double().T.cpu()  # (H·d, D)
        bases, energies = [], []
        every = torch.arange(len(weight)).view(self._shared, -1, self._width)  # (S, heads of each, d)
        for heads in every:
            own = torch.stack([covariance[rows][:, rows] for rows in heads]).mean(0)
            values, vectors = torch.linalg.eigh(own)
            values = values.clamp(min=float(values.max().clamp(min=1e-30)) * 1e-10)
            half, inverse = ((vectors * values**power) @ vectors.T for power in (0.5, -0.5))
            outputs = torch.cat([weight[rows] @ root for rows in heads], dim=1)  # (d, heads of each · D)
            left, singular, _ = torch.linalg.svd(half @ outputs, full_matrices=False)
            missing = (0, self._width - left.shape[1])
            bases.append(nn.functional.pad(inverse @ left, missing))
            energies.append(nn.functional.pad(singular.square(), missing))
        return torch.stack(bases), torch.stack(energies)

    def _of_heads(self, shared: Tensor) -> Tensor:
        """What each of S values has, (S, …), for each head, (H, …)."""
        return shared.repeat_interleave(self._heads // self._shared, dim=0)
