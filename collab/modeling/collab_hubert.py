"""Collaborative HuBERT."""

from transformers.models.hubert import modeling_hubert as native

from .collab_family import collaborative_family
from .collab_feed_forward import FeedForward
from .collab_layouts import AttentionWithOutProj
from .collab_model import CollaborativeBase


@collaborative_family()
class CollabHubertModel(CollaborativeBase, native.HubertModel):
    attention_classes = {native.HubertAttention: AttentionWithOutProj}
    feed_forward_classes = {native.HubertFeedForward: FeedForward("intermediate_dense", "output_dense")}
