"""Collaborative RoBERTa."""

from transformers.models.roberta import modeling_roberta as native

from .collab_attention import CollaborativeCrossAttention, CollaborativeSelfAttention
from .collab_family import collaborative_family
from .collab_feed_forward import FeedForward
from .collab_model import CollaborativeBase


@collaborative_family()
class CollabRobertaModel(CollaborativeBase, native.RobertaModel):
    attention_classes = {
        native.RobertaSelfAttention: CollaborativeSelfAttention,
        native.RobertaCrossAttention: CollaborativeCrossAttention,
    }
    feed_forward_classes = {native.RobertaLayer: FeedForward()}
