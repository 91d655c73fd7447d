"""Collaborative EuroBERT."""

from transformers.models.eurobert import modeling_eurobert as native

from .collab_rotary import LlamaFamily


class CollabEuroBertModel(LlamaFamily, native.EuroBertModel):
    native_prefix = "EuroBert"
