"""Attention layers that several families share, with their names for the same parts.

This file is copied into every exported model that uses it; it imports only its own folder.
"""

from .collab_attention import CollaborativeSelfAttention


class AttentionWithOProj(CollaborativeSelfAttention):
    """ViT's layer and its descendants': ``o_proj`` after the heads."""

    native_names = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "dense": "o_proj"}
    native_dropout = "attention_dropout"


class AttentionWithOutProj(CollaborativeSelfAttention):
    """The layer of CLIP and of audio models: ``out_proj`` after the heads."""

    native_names = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "dense": "out_proj"}
    native_heads = "num_heads"
