"""Collaborative ESM, with rotary positions. It scales queries before it rotates them, which is the same."""

from typing import Any

import torch
from torch import Tensor
from transformers.models.esm import modeling_esm as native

from .collab_family import BertEncoderFamily
from .collab_rotary import CollaborativeRotaryAttention


class CollabEsmAttention(CollaborativeRotaryAttention):
    native_names = {"query": "query", "key": "key", "value": "value"}
    native_dropout = "dropout"

    @classmethod
    def heads_of(cls, native: Any) -> int:
        return native.num_attention_heads


class CollabEsmModel(BertEncoderFamily, native.EsmModel):
    native_prefix = "Esm"
    native_attention = {"{}SelfAttention": CollabEsmAttention}
    position_type = "rotary"

    def predict_contacts(self, tokens: Tensor, attention_mask: Tensor) -> Tensor:
        """See the native model. A head that was removed counts as one that attends to all tokens alike.

        That is nothing but average, which the correction for averages takes away.
        """
        seen = attention_mask[:, None, None, None] * attention_mask[:, None, None, :, None]  # (B, 1, 1, T, T)
        shown = self(tokens, attention_mask=attention_mask, output_attentions=True, return_dict=True).attentions
        layers = [layer.attention.self for layer in self.encoder.layer]
        weights = [_of_all_heads(*pair) for pair in zip(layers, shown, strict=True)]
        return self.contact_head(tokens, torch.stack(weights, dim=1) * seen)


def _of_all_heads(layer: CollabEsmAttention, weights: Tensor) -> Tensor:
    """Attention weights (B, H, T, T) as (B, heads of the native layer, T, T), ones for a head that was removed."""
    whole = weights.new_ones(len(weights), layer.total_heads, *weights.shape[2:])
    whole[:, list(layer.heads)] = weights
    return whole
