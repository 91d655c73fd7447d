"""Feed-forward layers: with fewer neurons than the native ones, and of long rows in parts.

This file is copied into every exported model; it imports only torch, transformers and its own folder.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

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
        config_name: entry of the native config for N; None if it is for other layers, too, which stay as they are.
        gate: name of the other linear layer of a gated one, of the same shape as `up`.
        halves: how many outputs of `up` a neuron has: 2 if `up` is both linear layers of a gated one, one after the
            other.
        method: name of the method of the native module that computes the layer, and nothing else, from states (B, T,
            D); empty if there is none.
    """

    up: str = "intermediate.dense"
    down: str = "output.dense"
    config_name: str | None = "intermediate_size"
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
        neurons, outputs = _features(down)
        if width > neurons:
            raise ValueError(f"A feed-forward layer of {width} neurons is wider than the native {neurons}.")
        if width == neurons:
            return
        native.set_submodule(self.down, _of_features(down, width, outputs))
        for name in self.ups:
            up = native.get_submodule(name)
            native.set_submodule(name, _of_features(up, _features(up)[0], self.halves * width))

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


def _features(layer: nn.Module) -> tuple[int, int]:
    """Inputs and outputs of a linear layer, or of GPT-2's `Conv1D`."""
    if isinstance(layer, Conv1D):
        return layer.nx, layer.nf
    assert isinstance(layer, nn.Linear)
    return layer.in_features, layer.out_features


def _of_features(layer: nn.Module, inputs: int, outputs: int) -> nn.Module:
    """A layer of the same class with other numbers of inputs and outputs."""
    if isinstance(layer, Conv1D):
        return Conv1D(outputs, inputs)
    return nn.Linear(inputs, outputs, bias=layer.bias is not None)
