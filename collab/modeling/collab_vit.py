"""Collaborative ViT."""

from typing import Any

from huggingface_hub.dataclasses import strict
from transformers.models.vit.configuration_vit import ViTConfig
from transformers.models.vit.modeling_vit import (
    ViTAttention,
    ViTForImageClassification,
    ViTForMaskedImageModeling,
    ViTModel,
)

from .collab_attention import CollaborativeSelfAttention
from .collab_config import CollaborativeConfig
from .collab_model import CollaborativeBase, CollaborativeHead


@strict
class CollabViTConfig(CollaborativeConfig, ViTConfig):
    model_type = "collab_vit"


class CollabViTAttention(CollaborativeSelfAttention):
    native_names = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "dense": "o_proj"}

    @staticmethod
    def native_dropout(native: Any) -> float:
        return native.attention_dropout


class CollabViTModel(CollaborativeBase, ViTModel):
    config_class = CollabViTConfig
    attention_classes = {ViTAttention: CollabViTAttention}


class CollabViTHead(CollaborativeHead):
    base_class = CollabViTModel


class CollabViTForImageClassification(CollabViTHead, ViTForImageClassification): ...


class CollabViTForMaskedImageModeling(CollabViTHead, ViTForMaskedImageModeling): ...
