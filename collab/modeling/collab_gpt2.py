"""Collaborative GPT-2."""

from typing import Any

from torch import Tensor, nn
from transformers.models.gpt2 import modeling_gpt2 as native

from .collab_attention import CollaborativeSelfAttention
from .collab_config import AttentionSpec
from .collab_family import CollaborativeFamily
from .collab_feed_forward import FeedForward


class CollabGPT2Attention(CollaborativeSelfAttention):
    native_names = {
        "query": "c_attn",
        "key": "c_attn",
        "value": "c_attn",
        "dense": "c_proj",
        "resid_dropout": "resid_dropout",
    }
    native_heads = "num_heads"
    native_dropout = "attn_dropout"

    resid_dropout: nn.Module

    def __init__(self, native: Any, spec: AttentionSpec, config: Any) -> None:
        super().__init__(native, spec, config)
        self.scaling = native.scaling  # which the config may divide by the number of the layer

    def output(self, context: Tensor, hidden_states: Tensor) -> Tensor:
        return self.resid_dropout(self.dense(context))


class CollabGPT2Model(CollaborativeFamily, native.GPT2Model):
    native_attention = {"GPT2Attention": CollabGPT2Attention}
    native_feed_forward = {"GPT2MLP": FeedForward("c_fc", "c_proj", "n_inner")}
    expands_masks = True
