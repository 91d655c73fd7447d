"""Collaborative X-MOD."""

from transformers.models.xmod import modeling_xmod as native

from .collab_attention import CollaborativeCrossAttention, CollaborativeSelfAttention
from .collab_family import collaborative_family
from .collab_feed_forward import FeedForward
from .collab_model import CollaborativeBase


@collaborative_family()
class CollabXmodModel(CollaborativeBase, native.XmodModel):
    attention_classes = {
        native.XmodSelfAttention: CollaborativeSelfAttention,
        native.XmodCrossAttention: CollaborativeCrossAttention,
    }
    feed_forward_classes = {native.XmodLayer: FeedForward()}
