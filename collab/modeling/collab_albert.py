"""Collaborative ALBERT. Its passes share one set of attention weights, which is one collaborative layer."""

from typing import Any

from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from transformers.models.albert.configuration_albert import AlbertConfig
from transformers.models.albert.modeling_albert import (
    AlbertAttention,
    AlbertForMaskedLM,
    AlbertForMultipleChoice,
    AlbertForPreTraining,
    AlbertForQuestionAnswering,
    AlbertForSequenceClassification,
    AlbertForTokenClassification,
    AlbertModel,
)

from .collab_attention import CollaborativeSelfAttention
from .collab_config import CollaborativeConfig
from .collab_model import CollaborativeBase, CollaborativeHead


@strict
class CollabAlbertConfig(CollaborativeConfig, AlbertConfig):
    model_type = "collab_albert"


class CollabAlbertAttention(CollaborativeSelfAttention):
    """Includes the residual connection and the layer normalization."""

    native_names = {
        "query": "query",
        "key": "key",
        "value": "value",
        "dense": "dense",
        "output_dropout": "output_dropout",
        "LayerNorm": "LayerNorm",
    }
    output_dropout: nn.Module
    LayerNorm: nn.Module

    @staticmethod
    def native_dropout(native: Any) -> float:
        return native.attention_dropout.p

    def output(self, context: Tensor, hidden_states: Tensor) -> Tensor:
        return self.LayerNorm(hidden_states + self.output_dropout(self.dense(context)))


class CollabAlbertModel(CollaborativeBase, AlbertModel):
    config_class = CollabAlbertConfig
    attention_classes = {AlbertAttention: CollabAlbertAttention}


class CollabAlbertHead(CollaborativeHead):
    base_class = CollabAlbertModel


class CollabAlbertForMaskedLM(CollabAlbertHead, AlbertForMaskedLM): ...


class CollabAlbertForPreTraining(CollabAlbertHead, AlbertForPreTraining): ...


class CollabAlbertForSequenceClassification(CollabAlbertHead, AlbertForSequenceClassification): ...


class CollabAlbertForTokenClassification(CollabAlbertHead, AlbertForTokenClassification): ...


class CollabAlbertForQuestionAnswering(CollabAlbertHead, AlbertForQuestionAnswering): ...


class CollabAlbertForMultipleChoice(CollabAlbertHead, AlbertForMultipleChoice): ...
