"""Collaborative Llama."""

from transformers.models.llama import modeling_llama as native

from .collab_family import collaborative_family
from .collab_feed_forward import FeedForward
from .collab_model import CollaborativeBase
from .collab_rotary import CollaborativeRotaryAttention


@collaborative_family()
class CollabLlamaModel(CollaborativeBase, native.LlamaModel):
    attention_classes = {native.LlamaAttention: CollaborativeRotaryAttention}
    feed_forward_classes = {native.LlamaMLP: FeedForward("up_proj", "down_proj", gate="gate_proj")}
