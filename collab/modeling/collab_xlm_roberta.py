"""Collaborative XLM-RoBERTa."""

from transformers.models.xlm_roberta import modeling_xlm_roberta as native

from .collab_family import BertFamily


class CollabXLMRobertaModel(BertFamily, native.XLMRobertaModel):
    native_prefix = "XLMRoberta"
