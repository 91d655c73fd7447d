"""Collaborative DINOv2 with registers."""

from transformers.models.dinov2_with_registers import modeling_dinov2_with_registers as native

from .collab_layouts import ViTFamily


class CollabDinov2WithRegistersModel(ViTFamily, native.Dinov2WithRegistersModel):
    native_prefix = "Dinov2WithRegisters"
    native_inner = ["{}Encoder"]
