"""Collaborative HuBERT."""

from transformers.models.hubert import modeling_hubert as native

from .collab_layouts import Wav2Vec2Family


class CollabHubertModel(Wav2Vec2Family, native.HubertModel):
    native_prefix = "Hubert"
