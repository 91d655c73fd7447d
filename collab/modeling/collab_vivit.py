"""Collaborative ViViT."""

from transformers.models.vivit import modeling_vivit as native

from .collab_family import collaborative_family
from .collab_feed_forward import FeedForward
from .collab_layouts import AttentionWithOProj
from .collab_model import CollaborativeBase


@collaborative_family()
class CollabVivitModel(CollaborativeBase, native.VivitModel):
    attention_classes = {native.VivitAttention: AttentionWithOProj}
    feed_forward_classes = {native.VivitMLP: FeedForward("fc1", "fc2")}
