"""Collaborative XLM-RoBERTa-XL."""

from transformers.models.xlm_roberta_xl import modeling_xlm_roberta_xl as native

from .collab_family import BertFamily


class CollabXLMRobertaXLModel(BertFamily, native.XLMRobertaXLModel):
    native_prefix = "XLMRobertaXL"
