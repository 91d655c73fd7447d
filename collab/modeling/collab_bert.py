"""Collaborative BERT."""

from transformers.models.bert import modeling_bert as native

from .collab_family import BertFamily


class CollabBertModel(BertFamily, native.BertModel):
    native_prefix = "Bert"
