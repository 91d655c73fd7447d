"""Collaborative XLM-RoBERTa."""

from transformers.models.xlm_roberta import modeling_xlm_roberta as native

from .collab_attention import CollaborativeCrossAttention, CollaborativeSelfAttention
from .collab_family import collaborative_family
from .collab_feed_forward import FeedForward
from .collab_model import CollaborativeBase


@collaborative_family()
class CollabXLMRobertaModel(CollaborativeBase, native.XLMRobertaModel):
    attention_classes = {
        native.XLMRobertaSelfAttention: CollaborativeSelfAttention,
        native.XLMRobertaCrossAttention: CollaborativeCrossAttention,
    }
    feed_forward_classes = {native.XLMRobertaLayer: FeedForward()}
