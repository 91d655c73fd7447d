"""Collaborative MarkupLM."""

from transformers.models.markuplm import modeling_markuplm as native

from .collab_attention import CollaborativeSelfAttention
from .collab_family import collaborative_family
from .collab_feed_forward import FeedForward
from .collab_model import CollaborativeBase


@collaborative_family()
class CollabMarkupLMModel(CollaborativeBase, native.MarkupLMModel):
    attention_classes = {native.MarkupLMSelfAttention: CollaborativeSelfAttention}
    feed_forward_classes = {native.MarkupLMLayer: FeedForward()}
