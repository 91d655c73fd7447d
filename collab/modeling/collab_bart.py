"""Collaborative BART."""

from transformers.models.bart import modeling_bart as native

from .collab_family import collaborative_family
from .collab_layouts import EncoderDecoderAttention
from .collab_model import CollaborativeBase


@collaborative_family(
    inner=[native.BartEncoder, native.BartDecoder],
    without=["BartForCausalLM", "BartForSequenceClassification", "BartForQuestionAnswering"],
)
class CollabBartModel(CollaborativeBase, native.BartModel):
    attention_classes = {native.BartAttention: EncoderDecoderAttention}
