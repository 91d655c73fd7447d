"""Feed-forward layers with fewer neurons than the native ones.

This file is copied into every exported model; it imports only torch.
"""

from typing import NamedTuple

from torch import nn


class FeedForward(NamedTuple):
    """Where a native module keeps its feed-forward layer: act(x W_1 + b_1) W_2 + b_2.

    Attributes:
        up: name of the linear layer with W_1, (D, N), N neurons.
        down: name of the linear layer with W_2, (N, D).
        config_name: entry of the native config for N.
    """

    up: str = "intermediate.dense"
    down: str = "output.dense"
    config_name: str = "intermediate_size"

    def narrow(self, native: nn.Module, width: int) -> None:
        """Replaces both linear layers by ones with `width` neurons, whose weights are not initialized.

        Raises:
            ValueError: if the native layer has fewer neurons.
        """
        up, down = native.get_submodule(self.up), native.get_submodule(self.down)
        assert isinstance(up, nn.Linear)
        assert isinstance(down, nn.Linear)
        if width > up.out_features:
            raise ValueError(f"A feed-forward layer of {width} neurons is wider than the native {up.out_features}.")
        if width < up.out_features:
            native.set_submodule(self.up, nn.Linear(up.in_features, width, bias=up.bias is not None))
            native.set_submodule(self.down, nn.Linear(width, down.out_features, bias=down.bias is not None))
