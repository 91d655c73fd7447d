"""Feed-forward layers with fewer neurons, chosen and refitted in closed form.

With activations a = act(x W_1 + b_1), multiplied by the other product of x if the layer is gated, of covariance C, and
the metric G of the output (`statistics`), removing neurons and refitting the rest by least squares costs the least for
those of smallest ‖R_i‖²/(K⁻¹)_ii, where K = C + λI and R = W_2 G^{1/2} (the optimal brain surgeon for a linear layer;
Hassibi and Stork 1993). They are removed in small groups, K⁻¹ and R downdated exactly after each. What stays gets
W_2' = (K_SS)⁻¹ K_S: W_2, and the bias takes over the mean; without one, C is of the activations as they are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor, nn

from .blocks import Block
from .statistics import ProjectionStatistics, ridged
from .widths import Narrowed, Narrowing, widths_below

_STEP = 16
"""Neurons that are removed together. Kernels are as fast for any multiple of 16."""

_CANDIDATES = 4
"""Inputs that a group is chosen from, for each that is removed."""

_RIDGE = 1e-4
"""λ relative to the mean variance of an activation."""


class NarrowFeedForward(Narrowing):
    """A feed-forward layer with fewer neurons.

    Args:
        block: the layer's names.
        ups: its linear layers before the activation.
        down: the one after it.
        statistics: of the latter.
        length: tokens of a row.
    """

    def __init__(
        self, block: Block, ups: Sequence[nn.Linear], down: nn.Linear, statistics: ProjectionStatistics, length: int
    ) -> None:
        self._block, self._ups, self._down = block, ups, down
        self._statistics = statistics
        self._length = length

    @property
    def widths(self) -> Sequence[int]:
        """The number of neurons, and multiples of 16 below it."""
        return widths_below(self._down.in_features, _STEP, _STEP)

    def predicted(self, width: int) -> float:
        """See `Narrowing`."""
        return self._elimination[1][math.ceil((self._down.in_features - width) / _STEP)]

    def flops(self, width: int) -> float:
        """See `Narrowing`."""
        return 2 * self._weights(width) * self._length

    def parameters(self, width: int) -> float:
        """See `Narrowing`."""
        return self._weights(width) + (self._inner(width) if self._ups[0].bias is not None else 0)

    def _inner(self, width: int) -> int:
        """Outputs of the linear layers before the activation."""
        return self._block.halves * len(self._ups) * width

    def _weights(self, width: int) -> int:
        return self._ups[0].in_features * self._inner(width) + self._down.out_features * width

    def narrow(self, width: int) -> Narrowed:
        """See `Narrowing`."""
        order, _ = self._elimination
        keep = torch.tensor(sorted(order[len(order) - width :]))  # (w,)
        weight = self._down.weight.detach().double().T.cpu()  # W_2, (N, D)
        covariance = ridged(self._statistics.covariance.cpu(), _RIDGE)  # (N, N)
        refitted = torch.linalg.solve(covariance[keep][:, keep], covariance[keep] @ weight)  # (w, D)
        mean = self._statistics.mean.cpu()
        shift = mean @ weight - mean[keep] @ refitted  # (D,)
        block, down = self._block, self._down
        tensors = {f"{block.down}.weight": refitted.T.contiguous().to(down.weight)}
        halves = range(0, block.halves * down.in_features, down.in_features)
        rows = torch.cat([start + keep for start in halves]).to(down.weight.device)
        for name, up in zip(block.ups, self._ups, strict=True):
            tensors |= {f"{name}.{part}": tensor.detach()[rows] for part, tensor in up.named_parameters()}
        if down.bias is not None:
            tensors[f"{block.down}.bias"] = down.bias.detach() + shift.to(down.weight)
        return Narrowed(tensors, neurons=width)

    @cached_property
    def _elimination(self) -> tuple[list[int], list[float]]:
        """The neurons in the order of removal, and the loss after each group."""
        weight = self._down.weight.detach().double().T.cpu()  # (N, D)
        return eliminate(self._statistics.covariance.cpu(), weight @ self._statistics.metric_root.cpu())


def eliminate(covariance: Tensor, weight: Tensor, step: int = _STEP) -> tuple[list[int], list[float]]:
    """Removes inputs of a linear layer, in groups, each time those that cost least after refitting the others.

    Args:
        covariance: of the inputs, (N, N).
        weight: (N, D), in the basis where errors of the output are the plain ones.
        step: inputs in a group.

    Returns:
        All inputs in the order of removal, and the expected squared error after each group, from 0.
    """
    count = len(covariance)
    inverse = torch.linalg.inv(ridged(covariance, _RIDGE)).float()  # K⁻¹
    rest = weight.float().clone()  # R
    gone = torch.zeros(count, dtype=torch.bool)
    order: list[int] = []
    losses = [0.0]
    while count - len(order) > step:
        cost = (rest.square().sum(1) / inverse.diagonal()).masked_fill(gone, math.inf)  # (N,)
        cheapest = cost.topk(min(_CANDIDATES * step, count - len(order)), largest=False).indices
        group = cheapest[_cheapest_together(inverse[cheapest][:, cheapest], rest[cheapest], step)]
        among = torch.linalg.inv(inverse[group][:, group].double()).float()
        change = inverse[:, group] @ among  # (N, step)
        losses.append(losses[-1] + max(0.0, float(((among @ rest[group]) * rest[group]).sum())))
        rest.addmm_(change, rest[group], alpha=-1)
        inverse.addmm_(change, inverse[group], alpha=-1)
        rest[group] = 0.0
        gone[group] = True
        order += group.tolist()
    order += (~gone).nonzero().flatten().tolist()
    losses.append(losses[-1] + float(rest.square().sum()))
    return order, losses


def _cheapest_together(inverse: Tensor, rest: Tensor, count: int) -> Tensor:
    """The inputs that cost least together, greedily one by one: removing one makes its copies dear.

    Args:
        inverse: rows and columns of K⁻¹ for the inputs to choose from, (C, C).
        rest: their rows of R, (C, D).
        count: number of inputs to choose.

    Returns:
        Places among the C inputs, (count,).
    """
    inverse, rest = inverse.double(), rest.double()
    chosen: list[int] = []
    for _ in range(count):
        cost = rest.square().sum(1) / inverse.diagonal().clamp(min=torch.finfo(torch.float64).tiny)
        cost[chosen] = math.nan  # behind any other, and so is a cost that overflows
        place = int(cost.nan_to_num(math.inf, posinf=torch.finfo(torch.float64).max).argmin())
        share = inverse[:, place] / inverse[place, place]  # (C,)
        rest = rest - torch.outer(share, rest[place])
        inverse = inverse - torch.outer(share, inverse[place])
        chosen.append(place)
    return torch.tensor(chosen)
