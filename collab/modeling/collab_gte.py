"""Collaborative GTE."""

from transformers.models.gte import modeling_gte as native

from .collab_rotary import LlamaFamily


class CollabGteModel(LlamaFamily, native.GteModel):
    native_prefix = "Gte"
    expands_masks = True
