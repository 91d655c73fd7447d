"""Collaborative wav2vec 2.0."""

from transformers.models.wav2vec2 import modeling_wav2vec2 as native

from .collab_layouts import Wav2Vec2Family


class CollabWav2Vec2Model(Wav2Vec2Family, native.Wav2Vec2Model):
    native_prefix = "Wav2Vec2"
