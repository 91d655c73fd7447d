"""Collaborative LayoutLM."""

from transformers.models.layoutlm import modeling_layoutlm as native

from .collab_attention import CollaborativeSelfAttention
from .collab_family import collaborative_family
from .collab_feed_forward import FeedForward
from .collab_model import CollaborativeBase


@collaborative_family()
class CollabLayoutLMModel(CollaborativeBase, native.LayoutLMModel):
    attention_classes = {native.LayoutLMSelfAttention: CollaborativeSelfAttention}
    feed_forward_classes = {native.LayoutLMLayer: FeedForward()}
