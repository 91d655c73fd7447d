"""How much a loss hangs on each head: E_x |∂L/∂ξ_h| at ξ_h = 1 (Michel, Levy, Neubig 2019, equation 5)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..models.layers import HeadLayer
from ..models.states import frozen
from .gates import row_gates
from .objective import Goal


def gradient_importance(
    goal: Goal, layers: Sequence[HeadLayer], on_batch: Callable[[], None] = lambda: None
) -> dict[str, Tensor]:
    """The mean over examples of the absolute derivative of an example's loss by a gate on a head's output.

    A gate is one number for an example, so the derivative sums over its tokens, in whatever layer, as in the equation;
    the original code's division by the number of tokens, which has to leave the last layer of a classifier out because
    only one token has a gradient there, has nothing to correct here. Where passes share a layer's weights (ALBERT), so
    do the gates, and the derivative sums over the passes.

    Args:
        goal: whose loss.
        layers: of its model.
        on_batch: called after every batch.

    Returns:
        By layer, (H,) float64.
    """
    sums = {layer.name: torch.zeros(len(layer.heads), dtype=torch.float64) for layer in layers}
    examples = 0
    with frozen(goal.model), torch.enable_grad(), row_gates(layers) as gates:
        for losses in goal.losses():
            gates.clear()
            loss = losses()  # (B,)
            names = list(gates.by_layer)
            found = torch.autograd.grad(loss.sum(), [gates.by_layer[name] for name in names], allow_unused=True)
            examples += len(loss)
            for name, gradient in zip(names, found, strict=True):
                if gradient is not None:  # (sides·B, H)
                    by_example = gradient.unflatten(0, (goal.sides, -1)).sum(0)  # (B, H)
                    sums[name] += by_example.abs().double().sum(0).cpu()
            on_batch()
    return {name: one / examples for name, one in sums.items()}
