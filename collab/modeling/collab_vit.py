"""Collaborative ViT."""

from transformers.models.vit import modeling_vit as native

from .collab_layouts import ViTFamily


class CollabViTModel(ViTFamily, native.ViTModel):
    native_prefix = "ViT"
