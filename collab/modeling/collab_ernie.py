"""Collaborative ERNIE."""

from transformers.models.ernie import modeling_ernie as native

from .collab_attention import CollaborativeCrossAttention, CollaborativeSelfAttention
from .collab_family import collaborative_family
from .collab_feed_forward import FeedForward
from .collab_model import CollaborativeBase


@collaborative_family()
class CollabErnieModel(CollaborativeBase, native.ErnieModel):
    attention_classes = {
        native.ErnieSelfAttention: CollaborativeSelfAttention,
        native.ErnieCrossAttention: CollaborativeCrossAttention,
    }
    feed_forward_classes = {native.ErnieLayer: FeedForward()}
