"""Collaborative mBART."""

from transformers.models.mbart import modeling_mbart as native

from .collab_family import collaborative_family
from .collab_layouts import EncoderDecoderAttention
from .collab_model import CollaborativeBase


@collaborative_family(
    inner=[native.MBartEncoder, native.MBartDecoder],
    without=["MBartForCausalLM", "MBartForSequenceClassification", "MBartForQuestionAnswering"],
)
class CollabMBartModel(CollaborativeBase, native.MBartModel):
    attention_classes = {native.MBartAttention: EncoderDecoderAttention}
