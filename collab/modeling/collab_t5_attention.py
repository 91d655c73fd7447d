"""The attention of T5 and of its descendants, in the encoder and in the decoder.

This file is copied into every exported model that uses it; it imports only torch, transformers and its own folder.
"""

from typing import Any

from torch import Tensor, nn
from transformers.models.t5.modeling_t5 import T5Attention

from .collab_cache import own_cache
from .collab_config import AttentionSpec
from .collab_family import CollaborativeFamily
from .collab_feed_forward import FeedForward
from .collab_layouts import EncoderDecoderAttention


class RelativeAttention(EncoderDecoderAttention):
    """Scores are not scaled, and self-attention adds a relative position bias; one class for all kinds of attention."""

    native_names = {
        "query": "q",
        "key": "k",
        "value": "v",
        "dense": "o",
        "relative_attention_bias": "relative_attention_bias",
    }
    native_heads = "n_heads"
    scaled = False
    long_kinds = ()
    relative_attention_bias: nn.Embedding

    def __init__(self, native: Any, spec: AttentionSpec, config: Any) -> None:
        super().__init__(native, spec, config)
        self.is_decoder = native.is_decoder
        self.relative_attention_num_buckets = native.relative_attention_num_buckets
        self.relative_attention_max_distance = native.relative_attention_max_distance

    _relative_position_bucket = staticmethod(T5Attention._relative_position_bucket)
    compute_bias: Any = T5Attention.compute_bias

    @classmethod
    def scores_input(cls, native: Any, given: dict[str, Any]) -> tuple[Any, Tensor | None]:
        bias, length = given.get("position_bias"), given["hidden_states"].shape[1]
        if bias is None and hasattr(native, "relative_attention_bias"):
            bias = native.compute_bias(length, length, given["hidden_states"].device)
        return given.get("attention_mask"), bias

    def own_bias(self, hidden_states: Tensor, cache: Any) -> Tensor | None:
        """The bias of T queries after those in the cache, (1, H, T, S), S with the room of a static cache.

        None if the layer has no bias of its own.
        """
        length, device = hidden_states.shape[1], hidden_states.device  # offloaded weights are on another
        if not hasattr(self, "relative_attention_bias"):
            return None
        if cache is None:
            return self.compute_bias(length, length, device)
        cache = own_cache(cache)
        keys, _ = cache.get_mask_sizes(length, self.layer_idx)
        return self.compute_bias(length, keys, device, cache.get_seq_length(self.layer_idx))


class CollabT5Attention(RelativeAttention):
    """The first self-attention computes the position bias, which those after it pass on."""

    native_weights = 2

    @classmethod
    def scores_input(cls, native: Any, given: dict[str, Any]) -> tuple[Any, Tensor | None]:
        return super().scores_input(native, given | {"attention_mask": given.get("mask")})

    def forward(  # type: ignore[override]  # as T5's layer, which returns the position bias as well
        self,
        hidden_states: Tensor,
        mask: Any = None,
        key_value_states: Tensor | None = None,
        position_bias: Tensor | None = None,
        past_key_values: Any = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """As the native layer; see `attend_to_itself` and `attend_to_other`."""
        if self.kind == "cross":
            output, weights = self.attend_to_other(hidden_states, key_value_states, mask, past_key_values, **kwargs)
            return output, None, weights
        if position_bias is None:
            position_bias = self.own_bias(hidden_states, past_key_values)
        output, weights = self.attend_to_itself(
            hidden_states, mask, past_key_values, position_bias=position_bias, **kwargs
        )
        return output, position_bias, weights


class T5Family(CollaborativeFamily):
    """T5 and its descendants. Its classifiers answer by the last token of a text."""

    native_attention = {"{}Attention": CollabT5Attention}
    native_feed_forward = {
        "{}DenseActDense": FeedForward("wi", "wo", "d_ff"),
        "{}DenseGatedActDense": FeedForward("wi_1", "wo", "d_ff", gate="wi_0"),
    }
    native_inner = ["{}Stack"]
    native_encoders = ["{}EncoderModel"]
    not_converted = ["{}ForSequenceClassification", "{}ForQuestionAnswering"]
