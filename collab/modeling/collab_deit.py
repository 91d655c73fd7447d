"""Collaborative DeiT."""

from typing import Any

from huggingface_hub.dataclasses import strict
from transformers.models.deit.configuration_deit import DeiTConfig
from transformers.models.deit.modeling_deit import (
    DeiTAttention,
    DeiTForImageClassification,
    DeiTForImageClassificationWithTeacher,
    DeiTForMaskedImageModeling,
    DeiTModel,
)

from .collab_attention import CollaborativeSelfAttention
from .collab_config import CollaborativeConfig
from .collab_model import CollaborativeBase, CollaborativeHead


@strict
class CollabDeiTConfig(CollaborativeConfig, DeiTConfig):
    model_type = "collab_deit"


class CollabDeiTAttention(CollaborativeSelfAttention):
    native_names = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "dense": "o_proj"}

    @staticmethod
    def native_dropout(native: Any) -> float:
        return native.attention_dropout


class CollabDeiTModel(CollaborativeBase, DeiTModel):
    config_class = CollabDeiTConfig
    attention_classes = {DeiTAttention: CollabDeiTAttention}


class CollabDeiTHead(CollaborativeHead):
    base_class = CollabDeiTModel


class CollabDeiTForImageClassification(CollabDeiTHead, DeiTForImageClassification): ...


class CollabDeiTForImageClassificationWithTeacher(CollabDeiTHead, DeiTForImageClassificationWithTeacher): ...


class CollabDeiTForMaskedImageModeling(CollabDeiTHead, DeiTForMaskedImageModeling): ...
