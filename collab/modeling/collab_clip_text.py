"""Collaborative text tower of CLIP."""

from transformers.models.clip import modeling_clip as native

from .collab_family import collaborative_family
from .collab_feed_forward import FeedForward
from .collab_layouts import AttentionWithOutProj
from .collab_model import CollaborativeBase


@collaborative_family(native.CLIPTextModelWithProjection)
class CollabCLIPTextModel(CollaborativeBase, native.CLIPTextModel):
    attention_classes = {native.CLIPAttention: AttentionWithOutProj}
    feed_forward_classes = {native.CLIPMLP: FeedForward("fc1", "fc2")}
