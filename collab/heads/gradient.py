"""How much the loss depends on each head: E_x |∂L/∂ξ_h| at ξ_h = 1 (Michel, Levy, Neubig 2019, equation 5)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..models.layers import AttentionLayer
from ..models.states import frozen
from ..processes import processes, rank, summed
from .gates import row_gates
from .objective import Objective


def gradient_importance(
    objective: Objective, layers: Sequence[AttentionLayer], on_batch: Callable[[], None] = lambda: None
) -> dict[str, Tensor]:
    """The mean over examples of the absolute derivative of an example's loss by a gate on a head's output.

    A gate is one number per example, so the derivative sums over the example's tokens in every layer, as in the
    equation, and over its rows where it has several: both sides of a pair, or its choices. The authors' code divides by
    the number of tokens, except in the last layer of a classifier, where only one token has a gradient; neither is
    needed here. Passes that share a layer's weights (ALBERT) share its gates, and the derivative sums over the passes.
    Several processes, which all call this, divide the batches.

    Args:
        objective: gives the loss.
        layers: attention layers of its model.
        on_batch: called after every batch of this process.

    Returns:
        By layer name, (H,) float64.
    """
    sums = {layer.name: torch.zeros(len(layer.heads), dtype=torch.float64) for layer in layers}
    examples = 0
    with frozen(objective.model), torch.enable_grad(), row_gates(layers) as gates:
        for losses in objective.losses()[rank() :: processes()]:
            gates.clear()
            loss = losses()  # (B,)
            gradients = torch.autograd.grad(loss.sum(), list(gates.values()), allow_unused=True)
            examples += len(loss)
            for name, gradient in zip(gates, gradients, strict=True):
                if gradient is not None:  # (sides·B·choices, H)
                    by_example = gradient.unflatten(0, (objective.sides, len(loss), -1)).sum((0, 2))  # (B, H)
                    sums[name] += by_example.abs().double().sum(0).cpu()
            on_batch()
    examples = int(summed(torch.tensor(examples)))
    return {name: summed(total) / examples for name, total in sums.items()}
