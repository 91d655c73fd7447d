"""Collaborative BERT."""

from transformers.models.bert import modeling_bert as native

from .collab_attention import CollaborativeCrossAttention, CollaborativeSelfAttention
from .collab_family import collaborative_family
from .collab_feed_forward import FeedForward
from .collab_model import CollaborativeBase


@collaborative_family()
class CollabBertModel(CollaborativeBase, native.BertModel):
    attention_classes = {
        native.BertSelfAttention: CollaborativeSelfAttention,
        native.BertCrossAttention: CollaborativeCrossAttention,
    }
    feed_forward_classes = {native.BertLayer: FeedForward()}
