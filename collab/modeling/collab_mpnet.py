"""Collaborative MPNet."""

from typing import Any

from torch import Tensor
from transformers.models.mpnet import modeling_mpnet as native

from .collab_attention import CollaborativeSelfAttention
from .collab_family import BertEncoderFamily


class CollabMPNetAttention(CollaborativeSelfAttention):
    """Adds the relative position bias, which the encoder computes once for all layers."""

    native_names = {"query": "q", "key": "k", "value": "v", "dense": "o"}
    long_kinds = ()

    def forward(  # type: ignore[override]
        self,
        hidden_states: Tensor,
        attention_mask: Any = None,
        position_bias: Tensor | None = None,
        output_attentions: bool = False,
        **kwargs: Any,
    ) -> tuple[Tensor, ...]:
        output, weights = super().forward(
            hidden_states,
            attention_mask,
            position_bias=position_bias,
            output_attentions=output_attentions,
            **kwargs,
        )
        return (output, weights) if output_attentions else (output,)  # type: ignore[return-value]


class CollabMPNetModel(BertEncoderFamily, native.MPNetModel):
    native_prefix = "MPNet"
    native_attention = {"{}SelfAttention": CollabMPNetAttention}
