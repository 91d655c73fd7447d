"""Collaborative Splinter."""

from transformers.models.splinter import modeling_splinter as native

from .collab_attention import CollaborativeSelfAttention
from .collab_family import collaborative_family
from .collab_feed_forward import FeedForward
from .collab_model import CollaborativeBase


@collaborative_family(without=["SplinterForPreTraining"])  # which takes marked questions only
class CollabSplinterModel(CollaborativeBase, native.SplinterModel):
    attention_classes = {native.SplinterSelfAttention: CollaborativeSelfAttention}
    feed_forward_classes = {native.SplinterLayer: FeedForward()}
