"""Collaborative MPNet."""

from typing import Any

from huggingface_hub.dataclasses import strict
from torch import Tensor
from transformers.models.mpnet.configuration_mpnet import MPNetConfig
from transformers.models.mpnet.modeling_mpnet import (
    MPNetForMaskedLM,
    MPNetForMultipleChoice,
    MPNetForQuestionAnswering,
    MPNetForSequenceClassification,
    MPNetForTokenClassification,
    MPNetModel,
    MPNetSelfAttention,
)

from .collab_attention import CollaborativeSelfAttention
from .collab_config import CollaborativeConfig
from .collab_model import CollaborativeBase, CollaborativeHead


@strict
class CollabMPNetConfig(CollaborativeConfig, MPNetConfig):
    model_type = "collab_mpnet"


class CollabMPNetAttention(CollaborativeSelfAttention):
    """Adds the relative position bias, which the encoder computes once for all layers."""

    native_names = {"query": "q", "key": "k", "value": "v", "dense": "o"}

    def forward(  # type: ignore[override]
        self,
        hidden_states: Tensor,
        attention_mask: Any = None,
        position_bias: Tensor | None = None,
        output_attentions: bool = False,
        **kwargs: Any,
    ) -> tuple[Tensor, ...]:
        output, weights = super().forward(
            hidden_states,
            attention_mask,
            position_bias=position_bias,
            output_attentions=output_attentions,
            **kwargs,
        )
        return (output, weights) if output_attentions else (output,)  # type: ignore[return-value]


class CollabMPNetModel(CollaborativeBase, MPNetModel):
    config_class = CollabMPNetConfig
    attention_classes = {MPNetSelfAttention: CollabMPNetAttention}


class CollabMPNetHead(CollaborativeHead):
    base_class = CollabMPNetModel


class CollabMPNetForMaskedLM(CollabMPNetHead, MPNetForMaskedLM): ...


class CollabMPNetForSequenceClassification(CollabMPNetHead, MPNetForSequenceClassification): ...


class CollabMPNetForTokenClassification(CollabMPNetHead, MPNetForTokenClassification): ...


class CollabMPNetForQuestionAnswering(CollabMPNetHead, MPNetForQuestionAnswering): ...


class CollabMPNetForMultipleChoice(CollabMPNetHead, MPNetForMultipleChoice): ...
