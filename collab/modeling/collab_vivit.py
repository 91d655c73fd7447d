"""Collaborative ViViT."""

from transformers.models.vivit import modeling_vivit as native

from .collab_layouts import ViTFamily


class CollabVivitModel(ViTFamily, native.VivitModel):
    native_prefix = "Vivit"
