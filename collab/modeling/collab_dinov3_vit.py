"""Collaborative DINOv3. Its first tokens have no position, and its keys no bias."""

from transformers.models.dinov3_vit import modeling_dinov3_vit as native

from .collab_family import CollaborativeFamily
from .collab_feed_forward import FeedForward
from .collab_rotary import CollaborativeRotaryAttention


class CollabDINOv3ViTAttention(CollaborativeRotaryAttention):
    native_dropout = "dropout"


class CollabDINOv3ViTModel(CollaborativeFamily, native.DINOv3ViTModel):
    native_prefix = "DINOv3ViT"
    native_attention = {"{}Attention": CollabDINOv3ViTAttention}
    native_feed_forward = {
        "{}MLP": FeedForward("up_proj", "down_proj"),
        "{}GatedMLP": FeedForward("up_proj", "down_proj", gate="gate_proj"),
    }
    native_inner = ["{}Encoder"]
