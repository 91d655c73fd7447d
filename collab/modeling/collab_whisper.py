"""Collaborative Whisper."""

from transformers.models.whisper import modeling_whisper as native

from .collab_feed_forward import FeedForward
from .collab_layouts import BartFamily


class CollabWhisperModel(BartFamily, native.WhisperModel):
    native_prefix = "Whisper"
    native_feed_forward = {"{}EncoderLayer": FeedForward("fc1", "fc2", method="")}
    native_inner = ["{}Decoder"]
    native_encoders = ["{}Encoder"]
    keeps_prompts = True
