"""Collaborative I-JEPA."""

from transformers.models.ijepa import modeling_ijepa as native

from .collab_family import collaborative_family
from .collab_layouts import AttentionWithOProj
from .collab_model import CollaborativeBase


@collaborative_family()
class CollabIJepaModel(CollaborativeBase, native.IJepaModel):
    attention_classes = {native.IJepaAttention: AttentionWithOProj}
