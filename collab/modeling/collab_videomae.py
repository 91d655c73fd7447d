"""Collaborative VideoMAE."""

from transformers.models.videomae import modeling_videomae as native

from .collab_attention import CollaborativeSelfAttention
from .collab_family import collaborative_family
from .collab_feed_forward import FeedForward
from .collab_model import CollaborativeBase


class CollabVideoMAEAttention(CollaborativeSelfAttention):
    native_dropout = "dropout_prob"


# Pre-training has a decoder beside the encoder, of another width.
@collaborative_family(without=["VideoMAEForPreTraining"])
class CollabVideoMAEModel(CollaborativeBase, native.VideoMAEModel):
    attention_classes = {native.VideoMAESelfAttention: CollabVideoMAEAttention}
    feed_forward_classes = {native.VideoMAELayer: FeedForward()}
