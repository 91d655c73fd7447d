"""Collaborative RemBERT."""

from transformers.models.rembert import modeling_rembert as native

from .collab_attention import CollaborativeSelfAttention
from .collab_family import collaborative_family
from .collab_feed_forward import FeedForward
from .collab_model import CollaborativeBase


@collaborative_family()
class CollabRemBertModel(CollaborativeBase, native.RemBertModel):
    attention_classes = {native.RemBertSelfAttention: CollaborativeSelfAttention}
    feed_forward_classes = {native.RemBertLayer: FeedForward()}
