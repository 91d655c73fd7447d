"""Collaborative RoBERTa-PreLayerNorm."""

from transformers.models.roberta_prelayernorm import modeling_roberta_prelayernorm as native

from .collab_family import BertFamily


class CollabRobertaPreLayerNormModel(BertFamily, native.RobertaPreLayerNormModel):
    native_prefix = "RobertaPreLayerNorm"
