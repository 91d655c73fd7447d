"""Collaborative RoBERTa-PreLayerNorm."""

from transformers.models.roberta_prelayernorm import modeling_roberta_prelayernorm as native

from .collab_attention import CollaborativeCrossAttention, CollaborativeSelfAttention
from .collab_family import collaborative_family
from .collab_feed_forward import FeedForward
from .collab_model import CollaborativeBase


@collaborative_family()
class CollabRobertaPreLayerNormModel(CollaborativeBase, native.RobertaPreLayerNormModel):
    attention_classes = {
        native.RobertaPreLayerNormSelfAttention: CollaborativeSelfAttention,
        native.RobertaPreLayerNormCrossAttention: CollaborativeCrossAttention,
    }
    feed_forward_classes = {native.RobertaPreLayerNormLayer: FeedForward()}
