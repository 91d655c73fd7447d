"""Collaborative vision tower of SigLIP."""

from transformers.models.siglip import modeling_siglip as native

from .collab_layouts import CLIPFamily


class CollabSiglipVisionModel(CLIPFamily, native.SiglipVisionModel):
    native_prefix = "Siglip"
    native_feed_forward = {}  # the pooling head has the same width in the config, so native models cannot be narrower
