"""Collaborative Pegasus."""

from transformers.models.pegasus import modeling_pegasus as native

from .collab_family import collaborative_family
from .collab_layouts import EncoderDecoderAttention
from .collab_model import CollaborativeBase


@collaborative_family(inner=[native.PegasusEncoder, native.PegasusDecoder], without=["PegasusForCausalLM"])
class CollabPegasusModel(CollaborativeBase, native.PegasusModel):
    attention_classes = {native.PegasusAttention: EncoderDecoderAttention}
