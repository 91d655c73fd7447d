"""Collaborative GTE."""

from transformers.models.gte import modeling_gte as native

from .collab_family import collaborative_family
from .collab_feed_forward import FeedForward
from .collab_model import CollaborativeBase
from .collab_rotary import CollaborativeRotaryAttention


@collaborative_family()
class CollabGteModel(CollaborativeBase, native.GteModel):
    attention_classes = {native.GteAttention: CollaborativeRotaryAttention}
    feed_forward_classes = {native.GteMLP: FeedForward("up_proj", "down_proj", gate="gate_proj")}
