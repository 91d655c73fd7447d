"""Collaborative DistilBERT."""

from transformers.models.distilbert import modeling_distilbert as native

from .collab_attention import CollaborativeSelfAttention
from .collab_family import collaborative_family
from .collab_feed_forward import FeedForward
from .collab_model import CollaborativeBase


class CollabDistilBertAttention(CollaborativeSelfAttention):
    native_names = {"query": "q_lin", "key": "k_lin", "value": "v_lin", "dense": "out_lin"}
    native_heads = "n_heads"


@collaborative_family()
class CollabDistilBertModel(CollaborativeBase, native.DistilBertModel):
    attention_classes = {native.DistilBertSelfAttention: CollabDistilBertAttention}
    feed_forward_classes = {native.FFN: FeedForward("lin1", "lin2", "hidden_dim")}
