"""Collaborative UMT5, whose every self-attention has a position bias of its own."""

from typing import Any

from torch import Tensor
from transformers.models.umt5 import modeling_umt5 as native

from .collab_t5_attention import RelativeAttention, T5Family


class CollabUMT5Attention(RelativeAttention):
    native_states = "encoder_hidden_states"

    def forward(  # type: ignore[override]
        self,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor | None = None,
        past_key_values: Any = None,
        attention_mask: Any = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """As the native layer; see `EncoderDecoderAttention.forward`."""
        bias = {} if self.kind == "cross" else {"position_bias": self.own_bias(hidden_states, past_key_values)}
        return super().forward(hidden_states, encoder_hidden_states, past_key_values, attention_mask, **bias, **kwargs)


class CollabUMT5Model(T5Family, native.UMT5Model):
    native_prefix = "UMT5"
    native_attention = {"{}Attention": CollabUMT5Attention}
