"""Collaborative Whisper."""

from transformers.models.whisper import modeling_whisper as native

from .collab_family import collaborative_family
from .collab_feed_forward import FeedForward
from .collab_layouts import EncoderDecoderAttention
from .collab_model import CollaborativeBase


@collaborative_family(inner=[native.WhisperDecoder], encoders=[native.WhisperEncoder], without=["WhisperForCausalLM"])
class CollabWhisperModel(CollaborativeBase, native.WhisperModel):
    attention_classes = {native.WhisperAttention: EncoderDecoderAttention}
    keeps_prompts = True
    feed_forward_classes = {native.WhisperEncoderLayer: FeedForward("fc1", "fc2")}
