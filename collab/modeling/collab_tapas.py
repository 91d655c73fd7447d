"""Collaborative TAPAS."""

from transformers.models.tapas import modeling_tapas as native

from .collab_attention import CollaborativeSelfAttention
from .collab_family import collaborative_family
from .collab_feed_forward import FeedForward
from .collab_model import CollaborativeBase


@collaborative_family()
class CollabTapasModel(CollaborativeBase, native.TapasModel):
    attention_classes = {native.TapasSelfAttention: CollaborativeSelfAttention}
    feed_forward_classes = {native.TapasLayer: FeedForward()}
