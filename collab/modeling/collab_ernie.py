"""Collaborative ERNIE."""

from transformers.models.ernie import modeling_ernie as native

from .collab_family import BertFamily


class CollabErnieModel(BertFamily, native.ErnieModel):
    native_prefix = "Ernie"
