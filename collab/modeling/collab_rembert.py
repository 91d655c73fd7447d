"""Collaborative RemBERT."""

from transformers.models.rembert import modeling_rembert as native

from .collab_family import BertEncoderFamily


class CollabRemBertModel(BertEncoderFamily, native.RemBertModel):
    native_prefix = "RemBert"
