"""Collaborative text tower of SigLIP 2."""

from transformers.models.siglip2 import modeling_siglip2 as native

from .collab_layouts import CLIPFamily


class CollabSiglip2TextModel(CLIPFamily, native.Siglip2TextModel):
    native_prefix = "Siglip2"
