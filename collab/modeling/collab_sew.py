"""Collaborative SEW."""

from transformers.models.sew import modeling_sew as native

from .collab_family import collaborative_family
from .collab_layouts import AttentionWithOutProj
from .collab_model import CollaborativeBase


@collaborative_family()
class CollabSEWModel(CollaborativeBase, native.SEWModel):
    attention_classes = {native.SEWAttention: AttentionWithOutProj}
