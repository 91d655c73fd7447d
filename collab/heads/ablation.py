"""How much worse a model gets without a head, and with no other head in its layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from ..models.layers import AttentionLayer
from ..models.states import unfused_attention
from ..processes import divided
from .gates import closed
from .objective import Objective


def ablation(
    objective: Objective, layers: Sequence[AttentionLayer], on_change: Callable[[], None] = lambda: None
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The degradation from closing each head alone, and from closing all the other heads of its layer.

    Several processes divide the heads, so that each metric is of all rows.

    Args:
        objective: measures the degradation.
        layers: attention layers of its model.
        on_change: called after every measurement of this process.

    Returns:
        Both by layer name, (H,) float64.
    """
    without = [{layer.name: [head]} for layer in layers for head in layer.heads]
    alone = [{layer.name: [rest for rest in layer.heads if rest != head]} for layer in layers for head in layer.heads]
    changes = [partial(closed, layers, heads) for heads in [*without, *alone]]
    with unfused_attention(layers):  # as with closed heads, down to the last digit
        degradations = iter(divided(changes, lambda own: objective.degradation(own, on_change)))
    return tuple(  # type: ignore[return-value]
        {layer.name: torch.tensor([next(degradations) for _ in layer.heads], dtype=torch.float64) for layer in layers}
        for _ in range(2)
    )
