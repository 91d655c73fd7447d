"""Collaborative Audio Spectrogram Transformer."""

from transformers.models.audio_spectrogram_transformer import modeling_audio_spectrogram_transformer as native

from .collab_layouts import ViTFamily


class CollabASTModel(ViTFamily, native.ASTModel):
    native_prefix = "AST"
