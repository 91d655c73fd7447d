"""Collaborative I-JEPA."""

from transformers.models.ijepa import modeling_ijepa as native

from .collab_layouts import ViTFamily


class CollabIJepaModel(ViTFamily, native.IJepaModel):
    native_prefix = "IJepa"
