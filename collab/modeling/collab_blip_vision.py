"""Collaborative vision tower of BLIP, whose native layer computes queries, keys and values together."""

from transformers.models.blip import modeling_blip as native

from .collab_attention import CollaborativeSelfAttention
from .collab_family import CollaborativeFamily
from .collab_feed_forward import FeedForward


class CollabBlipAttention(CollaborativeSelfAttention):
    native_names = {"query": "qkv", "key": "qkv", "value": "qkv", "dense": "projection"}
    native_heads = "num_heads"


class CollabBlipVisionModel(CollaborativeFamily, native.BlipVisionModel):
    native_attention = {"BlipAttention": CollabBlipAttention}
    native_feed_forward = {"BlipMLP": FeedForward("fc1", "fc2")}
