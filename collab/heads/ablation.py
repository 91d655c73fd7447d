"""What is lost without a head, and with no other in its layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from ..models.layers import HeadLayer
from .gates import closed
from .objective import Goal


def ablation(
    goal: Goal, layers: Sequence[HeadLayer], on_change: Callable[[], None] = lambda: None
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The harm done by closing each head alone, and by closing all of its layer but it.

    Args:
        goal: what harm is.
        layers: of its model.
        on_change: called after every one of them.

    Returns:
        Both by layer, (H,) float64.
    """
    without = [{layer.name: [head]} for layer in layers for head in layer.heads]
    alone = [
        {layer.name: [other for other in layer.heads if other != head]} for layer in layers for head in layer.heads
    ]
    harms = iter(goal.harm([partial(closed, layers, heads) for heads in [*without, *alone]], on_change))
    return tuple(  # type: ignore[return-value]
        {layer.name: torch.tensor([next(harms) for _ in layer.heads], dtype=torch.float64) for layer in layers}
        for _ in range(2)
    )
