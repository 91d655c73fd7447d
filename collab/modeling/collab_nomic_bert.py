"""Collaborative Nomic BERT."""

from transformers.models.nomic_bert import modeling_nomic_bert as native

from .collab_family import collaborative_family
from .collab_feed_forward import FeedForward
from .collab_model import CollaborativeBase
from .collab_rotary import CollaborativeRotaryAttention


@collaborative_family()
class CollabNomicBertModel(CollaborativeBase, native.NomicBertModel):
    attention_classes = {native.NomicBertAttention: CollaborativeRotaryAttention}
    feed_forward_classes = {native.NomicBertMLP: FeedForward("up_proj", "down_proj", gate="gate_proj")}
