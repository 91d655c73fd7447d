"""Collaborative ViT."""

from transformers.models.vit import modeling_vit as native

from .collab_family import collaborative_family
from .collab_layouts import AttentionWithOProj
from .collab_model import CollaborativeBase


@collaborative_family()
class CollabViTModel(CollaborativeBase, native.ViTModel):
    attention_classes = {native.ViTAttention: AttentionWithOProj}
