"""Collaborative BART."""

from transformers.models.bart import modeling_bart as native

from .collab_layouts import BartFamily


class CollabBartModel(BartFamily, native.BartModel):
    native_prefix = "Bart"
