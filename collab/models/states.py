"""Context managers that put a model into a state and restore it afterwards."""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from transformers import PreTrainedModel

from .layers import AttentionLayer, native_layers


@contextlib.contextmanager
def evaluating(*models: nn.Module) -> Iterator[None]:
    """Puts models into evaluation mode inside the context; restores the mode of every module."""
    modes = [(module, module.training) for model in models for module in model.modules()]
    try:
        for model in models:
            model.eval()
        yield
    finally:
        for module, training in modes:
            module.training = training


@contextlib.contextmanager
def writing_by(model: PreTrainedModel, longest: int, **settings: Any) -> Iterator[Any]:
    """Has a model write one text for each row, not by chance, for a while. Yields the config to give to `generate`.

    Args:
        model: the model. What `generate` is given without a value, it takes from the model's own config.
        longest: tokens of a text at most.
        **settings: other entries of the generation config.
    """
    generator: Any = model  # a model class and a `GenerationMixin`
    before = generator.generation_config
    config = copy.deepcopy(before)
    once = {"do_sample": False, "num_return_sequences": 1, "return_dict_in_generate": False}
    for name, value in {"max_new_tokens": None, "max_length": longest, **once, **settings}.items():
        setattr(config, name, value)
    generator.generation_config = config
    try:
        yield config
    finally:
        generator.generation_config = before


@contextlib.contextmanager
def attending_by(model: PreTrainedModel, implementation: str) -> Iterator[None]:
    """Switches a model to another attention implementation, ``eager`` or ``sdpa``, for a while."""
    # Those of parts may differ. A part's comes after that of the whole, which sets them all.
    configs = {id(config): config for module in model.modules() if (config := getattr(module, "config", None))}
    before = [(config, config._attn_implementation) for config in configs.values() if _chooses_attention(config)]
    model.set_attn_implementation(implementation)
    try:
        yield
    finally:
        model.set_attn_implementation(before[0][1])
        for config, own in before:
            config._attn_implementation = own


def _chooses_attention(config: Any) -> bool:
    return hasattr(config, "_attn_implementation")


@contextlib.contextmanager
def unfused_attention(layers: Iterable[AttentionLayer]) -> Iterator[None]:
    """Has native attention layers call each of their projections and compute the weights of each head, for a while.

    Most always do; see `CollaborativeAttention.native_forward`.
    """
    forwards = {
        layer.module: layer.collaborative.native_forward
        for layer in layers
        if layer.converted is None and layer.collaborative.native_forward and "forward" not in vars(layer.module)
    }
    try:
        for module, forward in forwards.items():
            module.forward = functools.partial(forward, module)
        yield
    finally:
        for module in forwards:
            del module.forward  # what is left is that of its class


@contextlib.contextmanager
def eager_attention(model: PreTrainedModel) -> Iterator[None]:
    """Switches a model to matrix products and a softmax for a while: the only kernel that gives attention weights."""
    with unfused_attention(native_layers(model).values()), attending_by(model, "eager"):
        yield


@contextlib.contextmanager
def frozen(model: PreTrainedModel) -> Iterator[None]:
    """Lets no parameter of a model require gradients inside the context; activations still may."""
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in trainable:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in trainable:
            parameter.requires_grad_(True)


@contextlib.contextmanager
def set_dropout(model: nn.Module, probability: float | None) -> Iterator[None]:
    """Sets every dropout probability of a model inside the context.

    Args:
        model: native or converted.
        probability: the new probability; None to leave them unchanged. With 0, whole layers are not dropped either, and
            no spans of recordings are masked.
    """
    changes: list[tuple[Any, str, Any]] = []
    if probability is not None:
        changes += [(module, name, probability) for module in model.modules() for name in _names(module)]
    for module in model.modules() if probability == 0 else ():
        if isinstance(getattr(module, "layerdrop", None), float):
            changes.append((module, "layerdrop", 0.0))
        config = getattr(module, "config", None)
        if getattr(config, "apply_spec_augment", False):
            changes.append((config, "apply_spec_augment", False))
        if getattr(config, "layerdrop", None):  # which models of recordings read where they drop layers
            changes.append((config, "layerdrop", 0.0))
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in changes]
    try:
        for owner, name, value in changes:
            setattr(owner, name, value)
        yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)


def _to_eval(module: nn.Module, args: tuple) -> None:
    module.eval()


@contextlib.contextmanager
def keeping_statistics(model: nn.Module) -> Iterator[None]:
    """Lets batch normalization use the statistics that it has, and keep them, in training mode too."""
    with contextlib.ExitStack() as hooks:
        for module in model.modules():
            if isinstance(module, _BatchNorm):
                hooks.enter_context(module.register_forward_pre_hook(_to_eval))
        yield


_OF_FUNCTIONS = "dropout", "attention_dropout", "activation_dropout", "drop_prob"
"""Attributes of modules that drop by a function; `drop_prob` is that of a residual branch."""


def _names(module: nn.Module) -> list[str]:
    """Names of a module's attributes that are dropout probabilities."""
    if isinstance(module, nn.Dropout):
        return ["p"]
    return [name for name in _OF_FUNCTIONS if isinstance(getattr(module, name, None), float | int)]


@contextlib.contextmanager
def on_its_device(model: PreTrainedModel) -> Iterator[None]:
    """Moves a model back to the device that it was on when the context began."""
    device = model.device
    try:
        yield
    finally:
        if model.device != device:
            model.to(device)  # type: ignore[arg-type]


@contextlib.contextmanager
def in_float32(model: PreTrainedModel) -> Iterator[None]:
    """Casts a model to float32 inside the context, because training steps are too small for half precision.

    Afterwards every weight and buffer has its dtype again: buffers such as rotary frequencies often stay in float32.
    """
    dtypes = {name: tensor.dtype for name, tensor in _tensors(model)}
    model.float()
    try:
        yield
    finally:
        for name, tensor in _tensors(model):
            tensor.data = tensor.data.to(dtypes[name])


def fast_dtype(model: PreTrainedModel) -> torch.dtype:
    """The dtype to run a model in: float32 if it is in float16 on a CPU, else its own.

    Few processors multiply float16: on the others a product takes several times as long as in float32.
    """
    return torch.float32 if model.dtype == torch.float16 and model.device.type == "cpu" else model.dtype


@contextlib.contextmanager
def in_fast_dtype(model: PreTrainedModel) -> Iterator[None]:
    """Casts a model to its `fast_dtype` inside the context."""
    with contextlib.nullcontext() if model.dtype == fast_dtype(model) else in_float32(model):
        yield


def _tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """A model's parameters and buffers, by name."""
    yield from model.named_parameters()
    yield from model.named_buffers()
