"""Collaborative text tower of CLIP."""

from transformers.models.clip import modeling_clip as native

from .collab_layouts import CLIPFamily


class CollabCLIPTextModel(CLIPFamily, native.CLIPTextModel):
    native_prefix = "CLIP"
    native_others = ["CLIPTextModelWithProjection"]
