"""Collaborative DeiT."""

from transformers.models.deit import modeling_deit as native

from .collab_layouts import ViTFamily


class CollabDeiTModel(ViTFamily, native.DeiTModel):
    native_prefix = "DeiT"
