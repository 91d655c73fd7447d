"""Collaborative CamemBERT."""

from transformers.models.camembert import modeling_camembert as native

from .collab_attention import CollaborativeCrossAttention, CollaborativeSelfAttention
from .collab_family import collaborative_family
from .collab_feed_forward import FeedForward
from .collab_model import CollaborativeBase


@collaborative_family()
class CollabCamembertModel(CollaborativeBase, native.CamembertModel):
    attention_classes = {
        native.CamembertSelfAttention: CollaborativeSelfAttention,
        native.CamembertCrossAttention: CollaborativeCrossAttention,
    }
    feed_forward_classes = {native.CamembertLayer: FeedForward()}
