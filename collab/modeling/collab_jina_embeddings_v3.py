"""Collaborative Jina embeddings v3."""

from transformers.models.jina_embeddings_v3 import modeling_jina_embeddings_v3 as native

from .collab_feed_forward import FeedForward
from .collab_rotary import LlamaFamily


class CollabJinaEmbeddingsV3Model(LlamaFamily, native.JinaEmbeddingsV3Model):
    native_prefix = "JinaEmbeddingsV3"
    native_feed_forward = {"{}MLP": FeedForward("fc1", "fc2")}
    expands_masks = True
