"""Collaborative Audio Spectrogram Transformer."""

from transformers.models.audio_spectrogram_transformer import modeling_audio_spectrogram_transformer as native

from .collab_family import collaborative_family
from .collab_feed_forward import FeedForward
from .collab_layouts import AttentionWithOProj
from .collab_model import CollaborativeBase


@collaborative_family()
class CollabASTModel(CollaborativeBase, native.ASTModel):
    attention_classes = {native.ASTAttention: AttentionWithOProj}
    feed_forward_classes = {native.ASTMLP: FeedForward("fc1", "fc2")}
