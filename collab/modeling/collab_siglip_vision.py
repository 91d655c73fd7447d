"""Collaborative vision tower of SigLIP."""

from transformers.models.siglip import modeling_siglip as native

from .collab_family import collaborative_family
from .collab_layouts import AttentionWithOutProj
from .collab_model import CollaborativeBase


@collaborative_family()
class CollabSiglipVisionModel(CollaborativeBase, native.SiglipVisionModel):
    attention_classes = {native.SiglipAttention: AttentionWithOutProj}
    # No feed_forward_classes: the pooling head has the same width in the config, so native models cannot be narrower.
