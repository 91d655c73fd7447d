"""Collaborative SEW."""

from transformers.models.sew import modeling_sew as native

from .collab_family import collaborative_family
from .collab_feed_forward import FeedForward
from .collab_layouts import AttentionWithOutProj
from .collab_model import CollaborativeBase


@collaborative_family()
class CollabSEWModel(CollaborativeBase, native.SEWModel):
    attention_classes = {native.SEWAttention: AttentionWithOutProj}
    feed_forward_classes = {native.SEWFeedForward: FeedForward("intermediate_dense", "output_dense")}
