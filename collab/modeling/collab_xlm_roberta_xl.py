"""Collaborative XLM-RoBERTa-XL."""

from transformers.models.xlm_roberta_xl import modeling_xlm_roberta_xl as native

from .collab_attention import CollaborativeCrossAttention, CollaborativeSelfAttention
from .collab_family import collaborative_family
from .collab_feed_forward import FeedForward
from .collab_model import CollaborativeBase


@collaborative_family()
class CollabXLMRobertaXLModel(CollaborativeBase, native.XLMRobertaXLModel):
    attention_classes = {
        native.XLMRobertaXLSelfAttention: CollaborativeSelfAttention,
        native.XLMRobertaXLCrossAttention: CollaborativeCrossAttention,
    }
    feed_forward_classes = {native.XLMRobertaXLLayer: FeedForward()}
