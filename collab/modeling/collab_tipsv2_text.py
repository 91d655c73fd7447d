"""Collaborative text tower of TIPSv2."""

from transformers.models.tipsv2 import modeling_tipsv2 as native

from .collab_layouts import AttentionWithOutProj, CLIPFamily


class CollabTipsv2TextModel(CLIPFamily, native.Tipsv2TextModel):
    native_prefix = "Tipsv2"
    native_attention = {"{}TextAttention": AttentionWithOutProj}
