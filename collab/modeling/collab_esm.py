"""Collaborative ESM, with rotary positions. It scales queries before it rotates them, which is the same."""

from typing import Any

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
