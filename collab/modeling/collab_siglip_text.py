"""Collaborative text tower of SigLIP."""

from transformers.models.siglip import modeling_siglip as native

from .collab_layouts import CLIPFamily


class CollabSiglipTextModel(CLIPFamily, native.SiglipTextModel):
    native_prefix = "Siglip"
