"""Collaborative UniSpeech."""

from transformers.models.unispeech import modeling_unispeech as native

from .collab_family import collaborative_family
from .collab_feed_forward import FeedForward
from .collab_layouts import AttentionWithOutProj
from .collab_model import CollaborativeBase


@collaborative_family()
class CollabUniSpeechModel(CollaborativeBase, native.UniSpeechModel):
    attention_classes = {native.UniSpeechAttention: AttentionWithOutProj}
    feed_forward_classes = {native.UniSpeechFeedForward: FeedForward("intermediate_dense", "output_dense")}
