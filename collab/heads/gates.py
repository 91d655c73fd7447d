"""Gates on the heads' outputs: to differentiate by them, or to close some heads.

They multiply the input of W_O, where the attention of every family and every kernel ends, so the attention itself stays
as it is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..models.layers import HeadLayer
from ..models.states import in_parts


class RowGates:
    """Gates ξ = 1, one per head and row of a batch: (B, H) for each layer, in `by_layer` once a model has run.

    Passes that share a layer's weights share its gates.
    """

    def __init__(self) -> None:
        self.by_layer: dict[str, Tensor] = {}

    def clear(self) -> None:
        """Forgets the gates of the last batch."""
        self.by_layer.clear()


@contextlib.contextmanager
def row_gates(layers: Sequence[HeadLayer]) -> Iterator[RowGates]:
    """Multiplies each head's output by a differentiable gate of 1, one per row; see `RowGates`."""
    gates = RowGates()

    def gate(layer: HeadLayer) -> Callable[..., Any]:
        def apply(module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            context = args[0]  # (B, T, H·d)
            if layer.name not in gates.by_layer:
                shape = len(context), len(layer.heads)
                gates.by_layer[layer.name] = context.new_ones(shape, requires_grad=True)
            return (_gated(context, gates.by_layer[layer.name]), *args[1:])

        return apply

    handles = [layer.output.register_forward_pre_hook(gate(layer)) for layer in layers if layer.heads]
    try:
        with in_parts(layer.module for layer in layers):
            yield gates
    finally:
        for handle in handles:
            handle.remove()


@contextlib.contextmanager
def closed(layers: Sequence[HeadLayer], heads: Mapping[str, Sequence[int]]) -> Iterator[None]:
    """Sets the outputs of some heads to zero.

    Args:
        layers: attention layers of the model.
        heads: by layer name, the heads to close, as numbers in the original.
    """
    handles = []
    for layer in layers:
        hidden = set(heads.get(layer.name, ()))
        if hidden:
            mask = torch.tensor([[float(head not in hidden) for head in layer.heads]])  # (1, H)
            handles.append(layer.output.register_forward_pre_hook(_closing(mask)))
    try:
        with in_parts(layer.module for layer in layers):
            yield
    finally:
        for handle in handles:
            handle.remove()


def _closing(mask: Tensor) -> Callable[..., Any]:
    def apply(module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (_gated(args[0], mask.to(args[0])), *args[1:])

    return apply


def _gated(context: Tensor, gates: Tensor) -> Tensor:
    """Multiplies context (B, T, H·d) by gates (B or 1, H)."""
    by_head = context.unflatten(-1, (gates.shape[1], -1))  # (B, T, H, d)
    return (by_head * gates[:, None, :, None]).flatten(-2)
