"""Collaborative ELECTRA."""

from transformers.models.electra import modeling_electra as native

from .collab_family import BertFamily


class CollabElectraModel(BertFamily, native.ElectraModel):
    native_prefix = "Electra"
