"""Collaborative MegatronBERT."""

from transformers.models.megatron_bert import modeling_megatron_bert as native

from .collab_attention import CollaborativeSelfAttention
from .collab_family import collaborative_family
from .collab_feed_forward import FeedForward
from .collab_model import CollaborativeBase


@collaborative_family()
class CollabMegatronBertModel(CollaborativeBase, native.MegatronBertModel):
    attention_classes = {native.MegatronBertSelfAttention: CollaborativeSelfAttention}
    feed_forward_classes = {native.MegatronBertLayer: FeedForward()}
