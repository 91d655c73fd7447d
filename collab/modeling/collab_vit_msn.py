"""Collaborative ViT-MSN."""

from transformers.models.vit_msn import modeling_vit_msn as native

from .collab_layouts import ViTFamily


class CollabViTMSNModel(ViTFamily, native.ViTMSNModel):
    native_prefix = "ViTMSN"
