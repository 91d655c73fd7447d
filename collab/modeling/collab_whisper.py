"""Collaborative encoder of Whisper."""

from transformers.models.whisper import modeling_whisper as native

from .collab_family import collaborative_family
from .collab_feed_forward import FeedForward
from .collab_layouts import AttentionWithOutProj
from .collab_model import CollaborativeBase


@collaborative_family(without=["WhisperModel", "WhisperForCausalLM", "WhisperForConditionalGeneration"])
class CollabWhisperEncoder(CollaborativeBase, native.WhisperEncoder):
    attention_classes = {native.WhisperAttention: AttentionWithOutProj}
    feed_forward_classes = {native.WhisperEncoderLayer: FeedForward("fc1", "fc2")}
