"""Collaborative SEW."""

from transformers.models.sew import modeling_sew as native

from .collab_layouts import Wav2Vec2Family


class CollabSEWModel(Wav2Vec2Family, native.SEWModel):
    native_prefix = "SEW"
