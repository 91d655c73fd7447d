"""Collaborative DINOv2."""

from transformers.models.dinov2 import modeling_dinov2 as native

from .collab_family import collaborative_family
from .collab_layouts import AttentionWithOProj
from .collab_model import CollaborativeBase


@collaborative_family(inner=[native.Dinov2Encoder])
class CollabDinov2Model(CollaborativeBase, native.Dinov2Model):
    attention_classes = {native.Dinov2Attention: AttentionWithOProj}
