"""Collaborative DeiT."""

from transformers.models.deit import modeling_deit as native

from .collab_family import collaborative_family
from .collab_feed_forward import FeedForward
from .collab_layouts import AttentionWithOProj
from .collab_model import CollaborativeBase


@collaborative_family()
class CollabDeiTModel(CollaborativeBase, native.DeiTModel):
    attention_classes = {native.DeiTAttention: AttentionWithOProj}
    feed_forward_classes = {native.DeiTMLP: FeedForward("fc1", "fc2")}
