"""Collaborative ELECTRA."""

from transformers.models.electra import modeling_electra as native

from .collab_attention import CollaborativeCrossAttention, CollaborativeSelfAttention
from .collab_family import collaborative_family
from .collab_feed_forward import FeedForward
from .collab_model import CollaborativeBase


@collaborative_family()
class CollabElectraModel(CollaborativeBase, native.ElectraModel):
    attention_classes = {
        native.ElectraSelfAttention: CollaborativeSelfAttention,
        native.ElectraCrossAttention: CollaborativeCrossAttention,
    }
    feed_forward_classes = {native.ElectraLayer: FeedForward()}
