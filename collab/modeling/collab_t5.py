"""Collaborative T5."""

from transformers.models.t5 import modeling_t5 as native

from .collab_family import collaborative_family
from .collab_feed_forward import FeedForward
from .collab_model import CollaborativeBase
from .collab_t5_attention import CollabT5Attention


@collaborative_family(
    inner=[native.T5Stack],
    encoders=[native.T5EncoderModel],
    without=["T5ForSequenceClassification", "T5ForQuestionAnswering"],
)
class CollabT5Model(CollaborativeBase, native.T5Model):
    attention_classes = {native.T5Attention: CollabT5Attention}
    feed_forward_classes = {
        native.T5DenseActDense: FeedForward("wi", "wo", "d_ff"),
        native.T5DenseGatedActDense: FeedForward("wi_1", "wo", "d_ff", gate="wi_0"),
    }
