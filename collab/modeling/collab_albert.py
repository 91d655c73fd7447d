"""Collaborative ALBERT. Its passes share one set of attention weights, which is one collaborative layer."""

from torch import Tensor, nn
from transformers.models.albert import modeling_albert as native

from .collab_attention import CollaborativeSelfAttention
from .collab_family import CollaborativeFamily
from .collab_feed_forward import FeedForward


class CollabAlbertAttention(CollaborativeSelfAttention):
    """Includes the residual connection and the layer normalization."""

    native_names = {
        "query": "query",
        "key": "key",
        "value": "value",
        "dense": "dense",
        "output_dropout": "output_dropout",
        "LayerNorm": "LayerNorm",
    }
    native_dropout = "attention_dropout"
    output_dropout: nn.Module
    LayerNorm: nn.Module

    def output(self, context: Tensor, hidden_states: Tensor) -> Tensor:
        return self.LayerNorm(hidden_states + self.output_dropout(self.dense(context)))


class CollabAlbertModel(CollaborativeFamily, native.AlbertModel):
    native_attention = {"AlbertAttention": CollabAlbertAttention}
    native_feed_forward = {"AlbertLayer": FeedForward("ffn", "ffn_output", method="ff_chunk")}
    expands_masks = True
