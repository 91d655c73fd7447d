"""States that a model is put into for a while."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from torch import nn
from transformers import PreTrainedModel

from ..modeling.collab_attention import CollaborativeAttention


@contextlib.contextmanager
def evaluating(*models: nn.Module) -> Iterator[None]:
    """Puts models into evaluation mode for a while; every module is as it was afterwards."""
    modes = [(module, module.training) for model in models for module in model.modules()]
    try:
        for model in models:
            model.eval()
        yield
    finally:
        for module, training in modes:
            module.training = training


@contextlib.contextmanager
def eager_attention(model: PreTrainedModel) -> Iterator[None]:
    """Has a model attend by matrix products and a softmax: the only kernel that gives attention weights."""
    implementation = model.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        yield
    finally:
        model.set_attn_implementation(implementation)


@contextlib.contextmanager
def frozen(model: PreTrainedModel) -> Iterator[None]:
    """Has no parameter of a model take gradients; what flows through the model still does."""
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
    """Gives every dropout of a model another probability inside the context.

    Args:
        model: native or converted.
        probability: None to leave them.
    """
    found = [(module, name, getattr(module, name)) for module in model.modules() for name in _names(module)]
    try:
        if probability is not None:
            for module, name, _ in found:
                setattr(module, name, probability)
        yield
    finally:
        for module, name, value in found:
            setattr(module, name, value)


def _names(module: nn.Module) -> list[str]:
    """Attributes of a module that are probabilities of dropping something."""
    if isinstance(module, nn.Dropout):
        return ["p"]
    return ["attention_dropout"] if isinstance(module, CollaborativeAttention) else []


@contextlib.contextmanager
def in_float32(model: PreTrainedModel) -> Iterator[None]:
    """Has a model in float32 for a while, because the steps of training are too small for half precision."""
    dtype = model.dtype
    model.float()
    try:
        yield
    finally:
        model.to(dtype)  # type: ignore[arg-type]
