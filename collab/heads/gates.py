"""Gates on the heads' outputs: to differentiate by them, or to close some heads.

They multiply the input of W_O, where the attention of every family and every kernel ends, so the attention itself stays
as it is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from ..models.layers import AttentionLayer
from ..models.states import unfused_attention


@contextlib.contextmanager
def row_gates(layers: Sequence[AttentionLayer]) -> Iterator[dict[str, Tensor]]:
    """Multiplies each head's output by a differentiable gate ξ = 1, one for each row of a batch.

    Passes that share a layer's weights share its gates.

    Args:
        layers: attention layers of the model.

    Yields:
        The gates by layer name, (B, H), once the model has run. Clear them before the next batch.
    """
    gates: dict[str, Tensor] = {}

    def of(layer: AttentionLayer, context: Tensor) -> Tensor:
        if layer.name not in gates:
            gates[layer.name] = context.new_ones(len(context), len(layer.heads), requires_grad=True)
        return gates[layer.name]

    with _gated(layers, of):
        yield gates


@contextlib.contextmanager
def closed(layers: Sequence[AttentionLayer], heads: Mapping[str, Sequence[int]]) -> Iterator[None]:
    """Sets the outputs of some heads to zero.

    Args:
        layers: attention layers of the model.
        heads: by layer name, the heads to close, as numbers in the original.
    """

    def of(layer: AttentionLayer, context: Tensor) -> Tensor | None:
        hidden = heads.get(layer.name)
        return context.new_tensor([[float(head not in hidden) for head in layer.heads]]) if hidden else None  # (1, H)

    with _gated(layers, of):
        yield


@contextlib.contextmanager
def _gated(
    layers: Sequence[AttentionLayer], gates_of: Callable[[AttentionLayer, Tensor], Tensor | None]
) -> Iterator[None]:
    """Multiplies the heads' outputs (B, T, H·d) of every layer by gates (B or 1, H); by none where it gives None."""

    def before(layer: AttentionLayer) -> Callable[..., Any]:
        def apply(module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
            gates = gates_of(layer, args[0])
            if gates is None:
                return None
            by_head = args[0].unflatten(-1, (gates.shape[1], -1))  # (B, T, H, d)
            return ((by_head * gates[:, None, :, None]).flatten(-2), *args[1:])

        return apply

    with contextlib.ExitStack() as hooks:
        hooks.enter_context(unfused_attention(layers))
        for layer in layers:
            if layer.heads:
                hooks.enter_context(layer.output.register_forward_pre_hook(before(layer)))
        yield
