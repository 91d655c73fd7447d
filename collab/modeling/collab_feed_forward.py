"""Feed-forward layers: with fewer neurons than the native ones, and of long rows in parts.

This file is copied into every exported model; it imports only torch and its own folder.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from .collab_kernel import is_recorded

TOGETHER = 512
"""Tokens of a long row whose neurons are computed together. Those of all tokens are the largest tensors of a model
without T² scores, and do not fit into a processor's cache (benchmarks/long_rows.py)."""


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
        method: name of the method of the native module that computes the layer, and nothing else, from states (B, T,
            D); empty if there is none.
    """

    up: str = "intermediate.dense"
    down: str = "output.dense"
    config_name: str = "intermediate_size"
    gate: str | None = None
    halves: int = 1
    method: str = "forward"

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

    def divide(self, native: nn.Module, at_least: int) -> None:
        """Has a native module compute rows of at least so many tokens in parts of `TOGETHER` tokens."""
        if self.method:
            names = {name.partition(".")[0] for name in (*self.ups, self.down)}
            compute = partial(_in_parts, getattr(native, self.method), tuple(sorted(names)), at_least)
            setattr(native, self.method, compute)


def _in_parts(compute: Callable[[Tensor], Tensor], inner: tuple[str, ...], at_least: int, states: Tensor) -> Tensor:
    """What a method of a module makes of every token, (B, T, D), without a gradient in parts of the tokens.

    Args:
        compute: the method.
        inner: names of modules that it calls. What their hooks see is whole.
        at_least: number of tokens from which a row is computed in parts.
        states: (B, T, D).
    """
    if is_recorded() or torch.is_grad_enabled() or states.ndim != 3 or states.shape[1] < at_least:
        return compute(states)
    block: nn.Module = compute.__self__  # type: ignore[attr-defined]
    modules = [module for name in inner for module in block.get_submodule(name).modules()]
    if any(module._forward_hooks or module._forward_pre_hooks for module in modules):
        return compute(states)
    output = None
    for first in range(0, states.shape[0] * states.shape[1], TOGETHER):
        part = compute(states.flatten(0, 1)[first : first + TOGETHER].unsqueeze(0)).squeeze(0)  # (tokens, D)
        if output is None:
            output = part.new_empty(states.shape[0] * states.shape[1], part.shape[-1])
        output[first : first + TOGETHER] = part
    assert output is not None
    return output.unflatten(0, states.shape[:2])
