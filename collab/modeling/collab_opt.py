"""Collaborative OPT."""

from transformers.models.opt import modeling_opt as native

from .collab_family import collaborative_family
from .collab_feed_forward import FeedForward
from .collab_layouts import AttentionWithOutProj
from .collab_model import CollaborativeBase


@collaborative_family(native.OPTDecoder)
class CollabOPTModel(CollaborativeBase, native.OPTModel):
    attention_classes = {native.OPTAttention: AttentionWithOutProj}
    feed_forward_classes = {native.OPTDecoderLayer: FeedForward("fc1", "fc2")}
