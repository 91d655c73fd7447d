"""Collaborative ViT-MSN."""

from transformers.models.vit_msn import modeling_vit_msn as native

from .collab_family import collaborative_family
from .collab_feed_forward import FeedForward
from .collab_layouts import AttentionWithOProj
from .collab_model import CollaborativeBase


@collaborative_family()
class CollabViTMSNModel(CollaborativeBase, native.ViTMSNModel):
    attention_classes = {native.ViTMSNAttention: AttentionWithOProj}
    feed_forward_classes = {native.ViTMSNMLP: FeedForward("fc1", "fc2")}
