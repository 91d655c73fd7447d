"""Collaborative ModernBERT: queries, keys and values in one projection; local layers have frequencies of their own."""

from torch import Tensor, nn
from transformers.models.modernbert import modeling_modernbert as native

from .collab_family import CollaborativeFamily
from .collab_feed_forward import FeedForward
from .collab_rotary import CollaborativeRotaryAttention


class CollabModernBertAttention(CollaborativeRotaryAttention):
    native_names = {"query": "Wqkv", "key": "Wqkv", "value": "Wqkv", "dense": "Wo", "out_drop": "out_drop"}
    long_kinds = ("local",)  # some layers have a window of their own, in which no summary has a place
    out_drop: nn.Module

    def output(self, context: Tensor, hidden_states: Tensor) -> Tensor:
        return self.out_drop(self.dense(context))


class CollabModernBertModel(CollaborativeFamily, native.ModernBertModel):
    native_attention = {"ModernBertAttention": CollabModernBertAttention}
    native_feed_forward = {"ModernBertMLP": FeedForward("Wi", "Wo", halves=2)}
