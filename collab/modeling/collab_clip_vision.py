"""Collaborative vision tower of CLIP."""

from transformers.models.clip import modeling_clip as native

from .collab_layouts import CLIPFamily


class CollabCLIPVisionModel(CLIPFamily, native.CLIPVisionModel):
    native_prefix = "CLIP"
    native_others = ["CLIPVisionModelWithProjection"]
