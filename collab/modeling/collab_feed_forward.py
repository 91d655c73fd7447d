"""Feed-forward layers with fewer neurons than the native ones.

This file is copied into every exported model; it imports only torch.
"""

from typing import NamedTuple

from torch import nn


class FeedForward(NamedTuple):
    """Where a native module keeps its feed-forward layer: act(x W_1 + b_1) W_2 + b_2, or a gated one.

    A gated layer multiplies two such products of x neuron by neuron before W_2, of which one has no activation.

    Attributes:
        up: name of the linear layer with W_1, (D, N), N neurons.
        down: name of the linear layer with W_2, (N, D).
        config_name: entry of the native config for N.
        gate: name of the other linear layer of a gated one, of the same shape as `up`.
        halves: how many outputs of `up` a neuron has: 2 if `up` is both linear layers of a gated one, one after the
            other.
    """

    up: str = "intermediate.dense"
    down: str = "output.dense"
    config_name: str = "intermediate_size"
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
        assert isinstance(down, nn.Linear)
        if width > down.in_features:
            raise ValueError(f"A feed-forward layer of {width} neurons is wider than the native {down.in_features}.")
        if width == down.in_features:
            return
        native.set_submodule(self.down, nn.Linear(width, down.out_features, bias=down.bias is not None))
        for name in self.ups:
            up = native.get_submodule(name)
            assert isinstance(up, nn.Linear)
            native.set_submodule(name, nn.Linear(up.in_features, self.halves * width, bias=up.bias is not None))
