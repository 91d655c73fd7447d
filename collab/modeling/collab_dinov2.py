"""Collaborative DINOv2."""

from transformers.models.dinov2 import modeling_dinov2 as native

from .collab_layouts import ViTFamily


class CollabDinov2Model(ViTFamily, native.Dinov2Model):
    native_prefix = "Dinov2"
    native_inner = ["{}Encoder"]
