"""Collaborative RoBERTa."""

from transformers.models.roberta import modeling_roberta as native

from .collab_family import BertFamily


class CollabRobertaModel(BertFamily, native.RobertaModel):
    native_prefix = "Roberta"
