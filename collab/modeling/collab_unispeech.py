"""Collaborative UniSpeech."""

from transformers.models.unispeech import modeling_unispeech as native

from .collab_layouts import Wav2Vec2Family


class CollabUniSpeechModel(Wav2Vec2Family, native.UniSpeechModel):
    native_prefix = "UniSpeech"
