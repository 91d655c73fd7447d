"""Collaborative DeiT."""

from transformers.models.deit import modeling_deit as native

from .collab_family import collaborative_family
from .collab_layouts import AttentionWithOProj
from .collab_model import CollaborativeBase


@collaborative_family()
class CollabDeiTModel(CollaborativeBase, native.DeiTModel):
    attention_classes = {native.DeiTAttention: AttentionWithOProj}
