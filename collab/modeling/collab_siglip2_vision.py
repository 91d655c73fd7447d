"""Collaborative vision tower of SigLIP 2."""

from transformers.models.siglip2 import modeling_siglip2 as native

from .collab_family import collaborative_family
from .collab_feed_forward import FeedForward
from .collab_layouts import AttentionWithOutProj
from .collab_model import CollaborativeBase


@collaborative_family()
class CollabSiglip2VisionModel(CollaborativeBase, native.Siglip2VisionModel):
    attention_classes = {native.Siglip2Attention: AttentionWithOutProj}
    feed_forward_classes = {native.Siglip2MLP: FeedForward("fc1", "fc2")}
