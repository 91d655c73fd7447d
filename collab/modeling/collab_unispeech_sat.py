"""Collaborative UniSpeech-SAT."""

from transformers.models.unispeech_sat import modeling_unispeech_sat as native

from .collab_layouts import Wav2Vec2Family


class CollabUniSpeechSatModel(Wav2Vec2Family, native.UniSpeechSatModel):
    native_prefix = "UniSpeechSat"
