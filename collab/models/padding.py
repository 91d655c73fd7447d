"""Padding: the masks in a batch, and the test for which tokens of states are not padding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor


def output_mask(batch: Mapping[str, Tensor]) -> Tensor | None:
    """The mask of the tokens of a model's outputs, (B, T): the decoder's, if it has one beside an encoder."""
    return batch.get("decoder_attention_mask" if "decoder_input_ids" in batch else "attention_mask")


def query_mask(batch: Mapping[str, Tensor], kind: str) -> Tensor | None:
    """The mask of the tokens, (B, T), that an attention layer of a kind computes queries of.

    Args:
        batch: the model's inputs.
        kind: ``encoder``, ``decoder`` or ``cross``.
    """
    return batch.get("attention_mask") if kind == "encoder" else output_mask(batch)


def seen_tokens(mask: Any, states: Tensor) -> Tensor | None:
    """The tokens of states that are not padding: (B, T), True for those; None if the mask is not one of these tokens.

    Args:
        mask: (B, T), or (B, choices, T) where the choices of an example are separate rows of the states. Anything else
            says nothing of the tokens: no mask, one of other tokens, such as a recording's samples, or one of scores.
        states: (B, T, ...).
    """
    rows = states.shape[:2]
    if not isinstance(mask, Tensor) or mask.ndim not in (2, 3) or mask.numel() != rows.numel():
        return None
    return mask.reshape(rows).bool()


def without_padding(states: Tensor, mask: Any) -> Tensor:
    """The states of the tokens that are not padding, (B, T, ...) → (N, ...); all of them if the mask says nothing.

    Arguments as for `seen_tokens`.
    """
    seen = seen_tokens(mask, states)
    return states if seen is None else states[seen]
