"""Collaborative DINOv2."""

from transformers.models.dinov2 import modeling_dinov2 as native

from .collab_family import collaborative_family
from .collab_feed_forward import FeedForward
from .collab_layouts import AttentionWithOProj
from .collab_model import CollaborativeBase


@collaborative_family(inner=[native.Dinov2Encoder])
class CollabDinov2Model(CollaborativeBase, native.Dinov2Model):
    attention_classes = {native.Dinov2Attention: AttentionWithOProj}
    feed_forward_classes = {native.Dinov2MLP: FeedForward("fc1", "fc2")}
