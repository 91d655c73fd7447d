"""Collaborative UMT5, whose every self-attention has a position bias of its own."""

from typing import Any

from torch import Tensor
from transformers.models.umt5 import modeling_umt5 as native

from .collab_family import collaborative_family
from .collab_feed_forward import FeedForward
from .collab_model import CollaborativeBase
from .collab_t5_attention import RelativeAttention


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


@collaborative_family(
    inner=[native.UMT5Stack],
    encoders=[native.UMT5EncoderModel],
    without=["UMT5ForSequenceClassification", "UMT5ForQuestionAnswering"],
)
class CollabUMT5Model(CollaborativeBase, native.UMT5Model):
    attention_classes = {native.UMT5Attention: CollabUMT5Attention}
    feed_forward_classes = {
        native.UMT5DenseActDense: FeedForward("wi", "wo", "d_ff"),
        native.UMT5DenseGatedActDense: FeedForward("wi_1", "wo", "d_ff", gate="wi_0"),
    }
