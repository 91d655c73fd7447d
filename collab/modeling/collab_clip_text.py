"""Collaborative text tower of CLIP."""

from transformers.models.clip import modeling_clip as native

from .collab_layouts import AttentionWithOutProj, CLIPFamily


class CollabCLIPTextAttention(AttentionWithOutProj):
    long_kinds = ("local",)  # a token does not see those behind it, so a summary has no one mask


class CollabCLIPTextModel(CLIPFamily, native.CLIPTextModel):
    native_prefix = "CLIP"
    native_attention = {"{}Attention": CollabCLIPTextAttention}
    native_others = ["CLIPTextModelWithProjection"]
