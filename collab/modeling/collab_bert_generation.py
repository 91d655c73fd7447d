"""Collaborative BERT for generation."""

from transformers.models.bert_generation import modeling_bert_generation as native

from .collab_family import BertFamily


class CollabBertGenerationEncoder(BertFamily, native.BertGenerationEncoder):
    native_prefix = "BertGeneration"
