"""Collaborative ESM, with rotary positions. It scales queries before it rotates them, which is the same."""

from typing import Any

from transformers.models.esm import modeling_esm as native

from .collab_family import collaborative_family
from .collab_feed_forward import FeedForward
from .collab_model import CollaborativeBase
from .collab_rotary import CollaborativeRotaryAttention


class CollabEsmAttention(CollaborativeRotaryAttention):
    native_names = {"query": "query", "key": "key", "value": "value"}
    native_dropout = "dropout"

    @classmethod
    def heads_of(cls, native: Any) -> int:
        return native.num_attention_heads


@collaborative_family()
class CollabEsmModel(CollaborativeBase, native.EsmModel):
    attention_classes = {native.EsmSelfAttention: CollabEsmAttention}
    feed_forward_classes = {native.EsmLayer: FeedForward()}
    position_type = "rotary"
