"""Collaborative Whisper."""

from transformers.models.whisper import modeling_whisper as native

from .collab_layouts import BartFamily


class CollabWhisperModel(BartFamily, native.WhisperModel):
    native_prefix = "Whisper"
    native_inner = ["{}Decoder"]
    native_encoders = ["{}Encoder"]
    keeps_prompts = True
