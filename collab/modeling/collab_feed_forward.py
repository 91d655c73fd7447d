"""Feed-forward layers with fewer neurons than the native ones.

This file is copied into every exported model; it imports only torch and transformers.
"""

from typing import NamedTuple

from torch import nn
from transformers.pytorch_utils import Conv1D


class FeedForward(NamedTuple):
    """Where a native module keeps its feed-forward layer: act(x W_1 + b_1) W_2 + b_2, or a gated one.

    A gated layer multiplies two such products of x neuron by neuron before W_2, of which one has no activation.

    Attributes:
        up: name of the linear layer with W_1, (D, N), N neurons.
        down: name of the linear layer with W_2, (N, D).
        config_name: entry of the native config for N; None if it is for other layers, too, which stay as they are.
        gate: name of the other linear layer of a gated one, of the same shape as `up`.
        halves: how many outputs of `up` a neuron has: 2 if `up` is both linear layers of a gated one, one after the
            other.
    """

    up: str = "intermediate.dense"
    down: str = "output.dense"
    config_name: str | None = "intermediate_size"
    gate: str | None = None
    halves: int = 1

    @property
    def ups(self) -> tuple[str, ...]:
        """The linear layers before the activation."""
        return (self.up,) if self.gate is None else (self.up, self.gate)

    def narrow(self, native: nn.Module, width: int) -> None:
        """Replaces the linear layers by ones with `width` neurons, whose weights are not initialized.

        Raises:
            ValueError: if the native layer has fewer neurons.
        """
        down = native.get_submodule(self.down)
        neurons, outputs = _features(down)
        if width > neurons:
            raise ValueError(f"A feed-forward layer of {width} neurons is wider than the native {neurons}.")
        if width == neurons:
            return
        native.set_submodule(self.down, _of_features(down, width, outputs))
        for name in self.ups:
            up = native.get_submodule(name)
            native.set_submodule(name, _of_features(up, _features(up)[0], self.halves * width))


def _features(layer: nn.Module) -> tuple[int, int]:
    """Inputs and outputs of a linear layer, or of GPT-2's `Conv1D`."""
    if isinstance(layer, Conv1D):
        return layer.nx, layer.nf
    assert isinstance(layer, nn.Linear)
    return layer.in_features, layer.out_features


def _of_features(layer: nn.Module, inputs: int, outputs: int) -> nn.Module:
    """A layer of the same class with other numbers of inputs and outputs."""
    return Conv1D(outputs, inputs) if isinstance(layer, Conv1D) else nn.Linear(inputs, outputs, layer.bias is not None)
