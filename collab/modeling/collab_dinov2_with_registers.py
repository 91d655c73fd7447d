"""Collaborative DINOv2 with registers."""

from transformers.models.dinov2_with_registers import modeling_dinov2_with_registers as native

from .collab_family import collaborative_family
from .collab_feed_forward import FeedForward
from .collab_layouts import AttentionWithOProj
from .collab_model import CollaborativeBase


@collaborative_family(inner=[native.Dinov2WithRegistersEncoder])
class CollabDinov2WithRegistersModel(CollaborativeBase, native.Dinov2WithRegistersModel):
    attention_classes = {native.Dinov2WithRegistersAttention: AttentionWithOProj}
    feed_forward_classes = {native.Dinov2WithRegistersMLP: FeedForward("fc1", "fc2")}
