"""Collaborative Mistral."""

from transformers.models.mistral import modeling_mistral as native

from .collab_family import collaborative_family
from .collab_feed_forward import FeedForward
from .collab_model import CollaborativeBase
from .collab_rotary import CollaborativeRotaryAttention


@collaborative_family()
class CollabMistralModel(CollaborativeBase, native.MistralModel):
    attention_classes = {native.MistralAttention: CollaborativeRotaryAttention}
    feed_forward_classes = {native.MistralMLP: FeedForward("up_proj", "down_proj", gate="gate_proj")}
