"""Collaborative DINOv3. Its first tokens have no position, and its keys no bias."""

from transformers.models.dinov3_vit import modeling_dinov3_vit as native

from .collab_family import collaborative_family
from .collab_feed_forward import FeedForward
from .collab_model import CollaborativeBase
from .collab_rotary import CollaborativeRotaryAttention


class CollabDINOv3ViTAttention(CollaborativeRotaryAttention):
    native_dropout = "dropout"


@collaborative_family(inner=[native.DINOv3ViTEncoder])
class CollabDINOv3ViTModel(CollaborativeBase, native.DINOv3ViTModel):
    attention_classes = {native.DINOv3ViTAttention: CollabDINOv3ViTAttention}
    feed_forward_classes = {
        native.DINOv3ViTMLP: FeedForward("up_proj", "down_proj"),
        native.DINOv3ViTGatedMLP: FeedForward("up_proj", "down_proj", gate="gate_proj"),
    }
