"""Collaborative Pegasus."""

from transformers.models.pegasus import modeling_pegasus as native

from .collab_layouts import BartFamily


class CollabPegasusModel(BartFamily, native.PegasusModel):
    native_prefix = "Pegasus"
