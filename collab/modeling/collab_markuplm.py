"""Collaborative MarkupLM."""

from transformers.models.markuplm import modeling_markuplm as native

from .collab_family import BertEncoderFamily


class CollabMarkupLMModel(BertEncoderFamily, native.MarkupLMModel):
    native_prefix = "MarkupLM"
