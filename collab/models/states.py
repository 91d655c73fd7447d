"""States that a model is put into for a while."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from transformers import PreTrainedModel


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
