"""Collaborative RoCBert."""

from transformers.models.roc_bert import modeling_roc_bert as native

from .collab_family import BertFamily


class CollabRoCBertModel(BertFamily, native.RoCBertModel):
    native_prefix = "RoCBert"
