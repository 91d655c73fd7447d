"""Collaborative RoCBert."""

from transformers.models.roc_bert import modeling_roc_bert as native

from .collab_attention import CollaborativeCrossAttention, CollaborativeSelfAttention
from .collab_family import collaborative_family
from .collab_feed_forward import FeedForward
from .collab_model import CollaborativeBase


@collaborative_family()
class CollabRoCBertModel(CollaborativeBase, native.RoCBertModel):
    attention_classes = {
        native.RoCBertSelfAttention: CollaborativeSelfAttention,
        native.RoCBertCrossAttention: CollaborativeCrossAttention,
    }
    feed_forward_classes = {native.RoCBertLayer: FeedForward()}
