"""Collaborative vision tower of BLIP, whose native layer computes queries, keys and values together."""

from transformers.models.blip import modeling_blip as native

from .collab_attention import CollaborativeSelfAttention
from .collab_family import collaborative_family
from .collab_feed_forward import FeedForward
from .collab_model import CollaborativeBase


class CollabBlipAttention(CollaborativeSelfAttention):
    native_names = {"query": "qkv", "key": "qkv", "value": "qkv", "dense": "projection"}
    native_heads = "num_heads"


@collaborative_family()
class CollabBlipVisionModel(CollaborativeBase, native.BlipVisionModel):
    attention_classes = {native.BlipAttention: CollabBlipAttention}
    feed_forward_classes = {native.BlipMLP: FeedForward("fc1", "fc2")}
