"""Collaborative RoBERTa."""

from huggingface_hub.dataclasses import strict
from transformers.models.roberta.configuration_roberta import RobertaConfig
from transformers.models.roberta.modeling_roberta import (
    RobertaCrossAttention,
    RobertaForCausalLM,
    RobertaForMaskedLM,
    RobertaForMultipleChoice,
    RobertaForQuestionAnswering,
    RobertaForSequenceClassification,
    RobertaForTokenClassification,
    RobertaModel,
    RobertaSelfAttention,
)

from .collab_attention import CollaborativeCrossAttention, CollaborativeSelfAttention
from .collab_config import CollaborativeConfig
from .collab_model import CollaborativeBase, CollaborativeHead


@strict
class CollabRobertaConfig(CollaborativeConfig, RobertaConfig):
    model_type = "collab_roberta"


class CollabRobertaModel(CollaborativeBase, RobertaModel):
    config_class = CollabRobertaConfig
    attention_classes = {
        RobertaSelfAttention: CollaborativeSelfAttention,
        RobertaCrossAttention: CollaborativeCrossAttention,
    }


class CollabRobertaHead(CollaborativeHead):
    base_class = CollabRobertaModel


class CollabRobertaForMaskedLM(CollabRobertaHead, RobertaForMaskedLM): ...


class CollabRobertaForCausalLM(CollabRobertaHead, RobertaForCausalLM): ...


class CollabRobertaForSequenceClassification(CollabRobertaHead, RobertaForSequenceClassification): ...


class CollabRobertaForTokenClassification(CollabRobertaHead, RobertaForTokenClassification): ...


class CollabRobertaForQuestionAnswering(CollabRobertaHead, RobertaForQuestionAnswering): ...


class CollabRobertaForMultipleChoice(CollabRobertaHead, RobertaForMultipleChoice): ...
