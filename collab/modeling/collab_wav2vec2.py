"""Collaborative wav2vec 2.0."""

from transformers.models.wav2vec2 import modeling_wav2vec2 as native

from .collab_family import collaborative_family
from .collab_feed_forward import FeedForward
from .collab_layouts import AttentionWithOutProj
from .collab_model import CollaborativeBase


@collaborative_family()
class CollabWav2Vec2Model(CollaborativeBase, native.Wav2Vec2Model):
    attention_classes = {native.Wav2Vec2Attention: AttentionWithOutProj}
    feed_forward_classes = {native.Wav2Vec2FeedForward: FeedForward("intermediate_dense", "output_dense")}
