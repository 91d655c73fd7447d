"""Attention layers that several families share, with their names for the same parts.

This file is copied into every exported model that uses it; it imports only torch and its own folder.
"""

from typing import Any, ClassVar

from torch import Tensor

from .collab_attention import CollaborativeAttention, CollaborativeSelfAttention, LayerKind


class AttentionWithOProj(CollaborativeSelfAttention):
    """ViT's layer and its descendants': ``o_proj`` after the heads."""

    native_names = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "dense": "o_proj"}
    native_dropout = "attention_dropout"


class AttentionWithOutProj(CollaborativeSelfAttention):
    """The layer of CLIP and of audio models: ``out_proj`` after the heads."""

    native_names = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "dense": "out_proj"}
    native_heads = "num_heads"


class EncoderDecoderAttention(CollaborativeAttention):
    """BART's and T5's layers: one class for both kinds of self-attention and for cross-attention.

    Class attributes:
        native_states: the native layer's argument for the states of the other sequence.
    """

    native_names = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "dense": "out_proj"}
    native_heads = "num_heads"
    native_states: ClassVar[str] = "key_value_states"
    crosses = True

    @classmethod
    def kind_of(cls, native: Any) -> LayerKind:
        if not native.is_decoder:
            return "encoder"
        return "decoder" if native.is_causal else "cross"

    @classmethod
    def keys_input(cls, native: Any, given: dict[str, Any]) -> Tensor:
        return given[cls.native_states if cls.kind_of(native) == "cross" else "hidden_states"]

    def forward(
        self,
        hidden_states: Tensor,
        key_value_states: Tensor | None = None,
        past_key_values: Any = None,
        attention_mask: Any = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """As the native layer; see `attend_to_itself` and `attend_to_other`."""
        if self.kind == "cross":
            return self.attend_to_other(hidden_states, key_value_states, attention_mask, past_key_values, **kwargs)
        return self.attend_to_itself(hidden_states, attention_mask, past_key_values, **kwargs)
