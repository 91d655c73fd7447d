"""Collaborative Jina embeddings v3."""

from transformers.models.jina_embeddings_v3 import modeling_jina_embeddings_v3 as native

from .collab_family import collaborative_family
from .collab_feed_forward import FeedForward
from .collab_model import CollaborativeBase
from .collab_rotary import CollaborativeRotaryAttention


@collaborative_family()
class CollabJinaEmbeddingsV3Model(CollaborativeBase, native.JinaEmbeddingsV3Model):
    attention_classes = {native.JinaEmbeddingsV3Attention: CollaborativeRotaryAttention}
    feed_forward_classes = {native.JinaEmbeddingsV3MLP: FeedForward("fc1", "fc2")}
