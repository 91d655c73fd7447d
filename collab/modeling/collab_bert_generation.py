"""Collaborative BERT for generation."""

from transformers.models.bert_generation import modeling_bert_generation as native

from .collab_attention import CollaborativeCrossAttention, CollaborativeSelfAttention
from .collab_family import collaborative_family
from .collab_feed_forward import FeedForward
from .collab_model import CollaborativeBase


@collaborative_family()
class CollabBertGenerationEncoder(CollaborativeBase, native.BertGenerationEncoder):
    attention_classes = {
        native.BertGenerationSelfAttention: CollaborativeSelfAttention,
        native.BertGenerationCrossAttention: CollaborativeCrossAttention,
    }
    feed_forward_classes = {native.BertGenerationLayer: FeedForward()}
