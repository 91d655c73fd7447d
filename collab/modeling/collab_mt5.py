"""Collaborative mT5."""

from transformers.models.mt5 import modeling_mt5 as native

from .collab_family import collaborative_family
from .collab_feed_forward import FeedForward
from .collab_model import CollaborativeBase
from .collab_t5_attention import CollabT5Attention


@collaborative_family(
    inner=[native.MT5Stack],
    encoders=[native.MT5EncoderModel],
    without=["MT5ForSequenceClassification", "MT5ForQuestionAnswering"],
)
class CollabMT5Model(CollaborativeBase, native.MT5Model):
    attention_classes = {native.MT5Attention: CollabT5Attention}
    feed_forward_classes = {
        native.MT5DenseActDense: FeedForward("wi", "wo", "d_ff"),
        native.MT5DenseGatedActDense: FeedForward("wi_1", "wo", "d_ff", gate="wi_0"),
    }
