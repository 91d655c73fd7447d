"""Collaborative ViT-MSN."""

from transformers.models.vit_msn import modeling_vit_msn as native

from .collab_family import collaborative_family
from .collab_layouts import AttentionWithOProj
from .collab_model import CollaborativeBase


@collaborative_family()
class CollabViTMSNModel(CollaborativeBase, native.ViTMSNModel):
    attention_classes = {native.ViTMSNAttention: AttentionWithOProj}
