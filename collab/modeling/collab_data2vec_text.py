"""Collaborative Data2Vec for text."""

from transformers.models.data2vec import modeling_data2vec_text as native

from .collab_attention import CollaborativeCrossAttention, CollaborativeSelfAttention
from .collab_family import collaborative_family
from .collab_feed_forward import FeedForward
from .collab_model import CollaborativeBase


@collaborative_family()
class CollabData2VecTextModel(CollaborativeBase, native.Data2VecTextModel):
    attention_classes = {
        native.Data2VecTextSelfAttention: CollaborativeSelfAttention,
        native.Data2VecTextCrossAttention: CollaborativeCrossAttention,
    }
    feed_forward_classes = {native.Data2VecTextLayer: FeedForward()}
