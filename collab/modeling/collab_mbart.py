"""Collaborative mBART."""

from transformers.models.mbart import modeling_mbart as native

from .collab_layouts import BartFamily


class CollabMBartModel(BartFamily, native.MBartModel):
    native_prefix = "MBart"
