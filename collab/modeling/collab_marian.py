"""Collaborative Marian."""

from transformers.models.marian import modeling_marian as native

from .collab_layouts import BartFamily


class CollabMarianModel(BartFamily, native.MarianModel):
    native_prefix = "Marian"
