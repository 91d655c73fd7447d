"""Collaborative vision tower of SigLIP 2."""

from transformers.models.siglip2 import modeling_siglip2 as native

from .collab_layouts import CLIPFamily


class CollabSiglip2VisionModel(CLIPFamily, native.Siglip2VisionModel):
    native_prefix = "Siglip2"
    native_feed_forward = {}  # the pooling head has the same width in the config, so native models cannot be narrower
