"""Collaborative Marian."""

from transformers.models.marian import modeling_marian as native

from .collab_family import collaborative_family
from .collab_layouts import EncoderDecoderAttention
from .collab_model import CollaborativeBase


@collaborative_family(inner=[native.MarianEncoder, native.MarianDecoder], without=["MarianForCausalLM"])
class CollabMarianModel(CollaborativeBase, native.MarianModel):
    attention_classes = {native.MarianAttention: EncoderDecoderAttention}
