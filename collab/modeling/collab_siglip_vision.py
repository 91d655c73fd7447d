"""Collaborative vision tower of SigLIP."""

from transformers.models.siglip import modeling_siglip as native

from .collab_family import collaborative_family
from .collab_feed_forward import FeedForward
from .collab_layouts import AttentionWithOutProj
from .collab_model import CollaborativeBase


@collaborative_family()
class CollabSiglipVisionModel(CollaborativeBase, native.SiglipVisionModel):
    attention_classes = {native.SiglipAttention: AttentionWithOutProj}
    feed_forward_classes = {native.SiglipMLP: FeedForward("fc1", "fc2")}
