"""Whether two models can be held against each other, state by state."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedModel

from ..errors import ConfigurationError
from ..modeling.collab_model import CollaborativeMixin


def check_comparable(model: PreTrainedModel, other: PreTrainedModel) -> None:
    """Makes sure that two models have the same states after every layer, and the same kind of answers.

    Raises:
        ConfigurationError: saying what differs.
    """
    for name, what in (
        ("hidden_size", "hidden states of width"),
        ("num_hidden_layers", "layers:"),
        ("vocab_size", "a vocabulary of"),
        ("num_labels", "labels:"),
    ):
        mine, theirs = getattr(model.config, name, None), getattr(other.config, name, None)
        if mine != theirs:
            raise ConfigurationError(
                f"The models do not go together: the original has {what} {theirs}, this one {mine}. Name the one that "
                "this one was made from."
            )
    mine, theirs = (_native_name(one) for one in (model, other))
    if mine != theirs:
        raise ConfigurationError(
            f"The models do not go together: the original is a {theirs}, this one was a {mine}. Name the model that it "
            "was made from."
        )


def check_tokenizers(tokenizer: Any, other: Any) -> None:
    """Makes sure that two models read text alike; ConfigurationError if not."""
    if hasattr(tokenizer, "get_vocab") and hasattr(other, "get_vocab") and tokenizer.get_vocab() != other.get_vocab():
        raise ConfigurationError("The models have different tokenizers, so they cannot be compared.")


def _native_name(model: PreTrainedModel) -> str:
    return (model.native_class() if isinstance(model, CollaborativeMixin) else type(model)).__name__
