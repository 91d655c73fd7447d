"""Attention layers that several families share, with their names for the same parts; and what else such families share.

This file is copied into every exported model that uses it; it imports only torch and its own folder.
"""

from typing import Any, ClassVar

from torch import Tensor

from .collab_attention import CollaborativeAttention, CollaborativeSelfAttention
from .collab_family import CollaborativeFamily
from .collab_feed_forward import FeedForward
from .collab_native import LayerKind


class AttentionWithOProj(CollaborativeSelfAttention):
    """ViT's layer and its descendants': ``o_proj`` after the heads."""

    native_names = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "dense": "o_proj"}
    native_dropout = "attention_dropout"


class AttentionWithOutLin(CollaborativeSelfAttention):
    """DistilBERT's layer: ``out_lin`` after the heads."""

    native_names = {"query": "q_lin", "key": "k_lin", "value": "v_lin", "dense": "out_lin"}
    native_heads = "n_heads"


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


class ViTFamily(CollaborativeFamily):
    """ViT and its descendants."""

    native_attention = {"{}Attention": AttentionWithOProj}
    native_feed_forward = {"{}MLP": FeedForward("fc1", "fc2")}


class DistilBertFamily(CollaborativeFamily):
    """DistilBERT."""

    native_attention = {"{}SelfAttention": AttentionWithOutLin}
    native_feed_forward = {"FFN": FeedForward("lin1", "lin2", "hidden_dim")}
    expands_masks = True


class CLIPFamily(CollaborativeFamily):
    """Towers of CLIP and its descendants."""

    native_attention = {"{}Attention": AttentionWithOutProj}
    native_feed_forward = {"{}MLP": FeedForward("fc1", "fc2")}


class Wav2Vec2Family(CollaborativeFamily):
    """wav2vec 2.0 and its descendants."""

    native_attention = {"{}Attention": AttentionWithOutProj}
    native_feed_forward = {"{}FeedForward": FeedForward("intermediate_dense", "output_dense")}


class BartFamily(CollaborativeFamily):
    """BART and its descendants. Its classifiers answer by the last token of a text."""

    native_attention = {"{}Attention": EncoderDecoderAttention}
    native_feed_forward = {
        "{}EncoderLayer": FeedForward("fc1", "fc2", "encoder_ffn_dim", method=""),
        "{}DecoderLayer": FeedForward("fc1", "fc2", "decoder_ffn_dim", method=""),
    }
    native_inner = ["{}Encoder", "{}Decoder"]
    not_converted = ["{}ForCausalLM", "{}ForSequenceClassification", "{}ForQuestionAnswering"]
