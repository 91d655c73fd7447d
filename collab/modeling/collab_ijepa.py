"""Collaborative I-JEPA."""

from transformers.models.ijepa import modeling_ijepa as native

from .collab_family import collaborative_family
from .collab_feed_forward import FeedForward
from .collab_layouts import AttentionWithOProj
from .collab_model import CollaborativeBase


@collaborative_family()
class CollabIJepaModel(CollaborativeBase, native.IJepaModel):
    attention_classes = {native.IJepaAttention: AttentionWithOProj}
    feed_forward_classes = {native.IJepaMLP: FeedForward("fc1", "fc2")}
