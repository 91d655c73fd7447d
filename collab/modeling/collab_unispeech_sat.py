"""Collaborative UniSpeech-SAT."""

from transformers.models.unispeech_sat import modeling_unispeech_sat as native

from .collab_family import collaborative_family
from .collab_feed_forward import FeedForward
from .collab_layouts import AttentionWithOutProj
from .collab_model import CollaborativeBase


@collaborative_family()
class CollabUniSpeechSatModel(CollaborativeBase, native.UniSpeechSatModel):
    attention_classes = {native.UniSpeechSatAttention: AttentionWithOutProj}
    feed_forward_classes = {native.UniSpeechSatFeedForward: FeedForward("intermediate_dense", "output_dense")}
