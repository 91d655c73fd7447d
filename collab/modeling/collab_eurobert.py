"""Collaborative EuroBERT."""

from transformers.models.eurobert import modeling_eurobert as native

from .collab_family import collaborative_family
from .collab_model import CollaborativeBase
from .collab_rotary import CollaborativeRotaryAttention


@collaborative_family()
class CollabEuroBertModel(CollaborativeBase, native.EuroBertModel):
    attention_classes = {native.EuroBertAttention: CollaborativeRotaryAttention}
