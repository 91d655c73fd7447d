"""Collaborative vision tower of SigLIP 2."""

from transformers.models.siglip2 import modeling_siglip2 as native

from .collab_family import collaborative_family
from .collab_layouts import AttentionWithOutProj
from .collab_model import CollaborativeBase


@collaborative_family()
class CollabSiglip2VisionModel(CollaborativeBase, native.Siglip2VisionModel):
    attention_classes = {native.Siglip2Attention: AttentionWithOutProj}
    # No feed_forward_classes: the pooling head has the same width in the config, so native models cannot be narrower.
