"""Heads with narrower values, in closed form.

Head h contributes v_h W_O^h, v_h (d values attended to) with covariance C_h. Of its r-dimensional parts, the one with
the least error in the metric G of the output is given by the first r left singular vectors of C_h^{1/2} W_O^h G^{1/2}.
W_O and b_O of all heads are then refitted together by least squares. Attention weights sum to one, so the value bias
goes into b_O exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor, nn

from ..modeling.collab_attention import CollaborativeAttention
from .blocks import Block
from .statistics import ProjectionStatistics
from .widths import Narrowed, Narrowing, step_of_head, widths_below

_RIDGE = 1e-6


class NarrowValues(Narrowing):
    """Values and output projection of an attention layer, with fewer dimensions for each head.

    Args:
        block: the layer's names.
        layer: the attention layer.
        output: its output projection W_O.
        statistics: of the output projection.
        length: tokens of a row.
    """

    def __init__(
        self,
        block: Block,
        layer: CollaborativeAttention,
        output: nn.Linear,
        statistics: ProjectionStatistics,
        length: int,
    ) -> None:
        assert isinstance(layer.value, nn.Linear)
        self._block, self._value, self._output = block, layer.value, output
        self._heads, self._width = layer.num_attention_heads, layer.value_width
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
        return self._weights(width) + (self._heads * width if self._value.bias is not None else 0)

    def _weights(self, width: int) -> int:
        return (self._value.in_features + self._output.out_features) * self._heads * width

    def narrow(self, width: int) -> Narrowed:
        """See `Narrowing`."""
        bases, _ = self._spectra
        basis = torch.block_diag(*bases[:, :, :width])  # P, (H·d, H·r)
        values = basis.T @ self._value.weight.detach().double().cpu()  # (H·r, D)
        weight = self._output.weight.detach().double().T.cpu()  # W_O, (H·d, D)
        covariance = self._statistics.covariance.cpu()
        inner = basis.T @ covariance @ basis  # (H·r, H·r)
        inner = inner + _RIDGE * inner.diagonal().mean() * torch.eye(len(inner), dtype=inner.dtype)
        refitted = torch.linalg.solve(inner, basis.T @ covariance @ weight)  # (H·r, D)
        mean = self._statistics.mean.cpu()
        bias = self._value.bias
        without_bias = mean if bias is None else mean - bias.detach().double().cpu()
        shift = mean @ weight - (without_bias @ basis) @ refitted  # (D,)
        # Rows as large as the original's, so that training treats them alike.
        size = self._value.weight.detach().double().cpu().square().mean().sqrt()
        scale = size / values.square().mean(1).sqrt().clamp(min=1e-12)  # (H·r,)
        block, like = self._block, self._value.weight
        tensors = {
            f"{block.attention}.value.weight": (values * scale.unsqueeze(1)).to(like),
            f"{block.output}.weight": (refitted / scale.unsqueeze(1)).T.contiguous().to(like),
        }
        if bias is not None:
            tensors[f"{block.attention}.value.bias"] = torch.zeros(len(values)).to(like)
        if self._output.bias is not None:
            tensors[f"{block.output}.bias"] = self._output.bias.detach() + shift.to(like)
        return Narrowed(tensors, spec={"value_width": width})

    @cached_property
    def _spectra(self) -> tuple[Tensor, Tensor]:
        """For each head, directions of v_h of unit variance, (H, d, d), and the energy that each explains, (H, d)."""
        covariance = self._statistics.covariance.cpu()
        root = self._statistics.metric_root.cpu()
        weight = self._output.weight.detach().double().T.cpu()  # (H·d, D)
        bases, energies = [], []
        for h in range(self._heads):
            rows = slice(h * self._width, (h + 1) * self._width)
            values, vectors = torch.linalg.eigh(covariance[rows, rows])
            values = values.clamp(min=float(values.max().clamp(min=1e-30)) * 1e-10)
            half, inverse = ((vectors * values**power) @ vectors.T for power in (0.5, -0.5))
            left, singular, _ = torch.linalg.svd(half @ weight[rows] @ root, full_matrices=False)
            missing = (0, self._width - left.shape[1])
            bases.append(nn.functional.pad(inverse @ left, missing))
            energies.append(nn.functional.pad(singular.square(), missing))
        return torch.stack(bases), torch.stack(energies)
