"""Collaborative Nomic BERT."""

from transformers.models.nomic_bert import modeling_nomic_bert as native

from .collab_rotary import LlamaFamily


class CollabNomicBertModel(LlamaFamily, native.NomicBertModel):
    native_prefix = "NomicBert"
    expands_masks = True
