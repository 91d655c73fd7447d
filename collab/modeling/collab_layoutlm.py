"""Collaborative LayoutLM."""

from transformers.models.layoutlm import modeling_layoutlm as native

from .collab_family import BertEncoderFamily


class CollabLayoutLMModel(BertEncoderFamily, native.LayoutLMModel):
    native_prefix = "LayoutLM"
