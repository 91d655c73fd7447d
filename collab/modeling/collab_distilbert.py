"""Collaborative DistilBERT."""

from transformers.models.distilbert import modeling_distilbert as native

from .collab_layouts import DistilBertFamily


class CollabDistilBertModel(DistilBertFamily, native.DistilBertModel):
    native_prefix = "DistilBert"
