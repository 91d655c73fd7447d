"""Collaborative M2M100, whose model type is that of NLLB, too."""

from transformers.models.m2m_100 import modeling_m2m_100 as native

from .collab_family import collaborative_family
from .collab_layouts import EncoderDecoderAttention
from .collab_model import CollaborativeBase


@collaborative_family(inner=[native.M2M100Encoder, native.M2M100Decoder])
class CollabM2M100Model(CollaborativeBase, native.M2M100Model):
    attention_classes = {native.M2M100Attention: EncoderDecoderAttention}
