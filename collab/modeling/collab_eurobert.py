"""Collaborative EuroBERT."""

from transformers.models.eurobert import modeling_eurobert as native

from .collab_family import collaborative_family
from .collab_feed_forward import FeedForward
from .collab_model import CollaborativeBase
from .collab_rotary import CollaborativeRotaryAttention


@collaborative_family()
class CollabEuroBertModel(CollaborativeBase, native.EuroBertModel):
    attention_classes = {native.EuroBertAttention: CollaborativeRotaryAttention}
    feed_forward_classes = {native.EuroBertMLP: FeedForward("up_proj", "down_proj", gate="gate_proj")}
