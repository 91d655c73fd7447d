"""Collaborative ViT."""

from transformers.models.vit import modeling_vit as native

from .collab_family import collaborative_family
from .collab_feed_forward import FeedForward
from .collab_layouts import AttentionWithOProj
from .collab_model import CollaborativeBase


@collaborative_family()
class CollabViTModel(CollaborativeBase, native.ViTModel):
    attention_classes = {native.ViTAttention: AttentionWithOProj}
    feed_forward_classes = {native.ViTMLP: FeedForward("fc1", "fc2")}
