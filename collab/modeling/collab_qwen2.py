"""Collaborative Qwen2."""

from transformers.models.qwen2 import modeling_qwen2 as native

from .collab_family import collaborative_family
from .collab_feed_forward import FeedForward
from .collab_model import CollaborativeBase
from .collab_rotary import CollaborativeRotaryAttention


@collaborative_family()
class CollabQwen2Model(CollaborativeBase, native.Qwen2Model):
    attention_classes = {native.Qwen2Attention: CollaborativeRotaryAttention}
    feed_forward_classes = {native.Qwen2MLP: FeedForward("up_proj", "down_proj", gate="gate_proj")}
