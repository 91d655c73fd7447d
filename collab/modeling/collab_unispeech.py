"""Collaborative UniSpeech."""

from transformers.models.unispeech import modeling_unispeech as native

from .collab_family import collaborative_family
from .collab_layouts import AttentionWithOutProj
from .collab_model import CollaborativeBase


@collaborative_family()
class CollabUniSpeechModel(CollaborativeBase, native.UniSpeechModel):
    attention_classes = {native.UniSpeechAttention: AttentionWithOutProj}
