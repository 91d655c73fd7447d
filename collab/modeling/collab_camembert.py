"""Collaborative CamemBERT."""

from huggingface_hub.dataclasses import strict
from transformers.models.camembert.configuration_camembert import CamembertConfig
from transformers.models.camembert.modeling_camembert import (
    CamembertCrossAttention,
    CamembertForCausalLM,
    CamembertForMaskedLM,
    CamembertForMultipleChoice,
    CamembertForQuestionAnswering,
    CamembertForSequenceClassification,
    CamembertForTokenClassification,
    CamembertModel,
    CamembertSelfAttention,
)

from .collab_attention import CollaborativeCrossAttention, CollaborativeSelfAttention
from .collab_config import CollaborativeConfig
from .collab_model import CollaborativeBase, CollaborativeHead


@strict
class CollabCamembertConfig(CollaborativeConfig, CamembertConfig):
    model_type = "collab_camembert"


class CollabCamembertModel(CollaborativeBase, CamembertModel):
    config_class = CollabCamembertConfig
    attention_classes = {
        CamembertSelfAttention: CollaborativeSelfAttention,
        CamembertCrossAttention: CollaborativeCrossAttention,
    }


class CollabCamembertHead(CollaborativeHead):
    base_class = CollabCamembertModel


class CollabCamembertForMaskedLM(CollabCamembertHead, CamembertForMaskedLM): ...


class CollabCamembertForCausalLM(CollabCamembertHead, CamembertForCausalLM): ...


class CollabCamembertForSequenceClassification(CollabCamembertHead, CamembertForSequenceClassification): ...


class CollabCamembertForTokenClassification(CollabCamembertHead, CamembertForTokenClassification): ...


class CollabCamembertForQuestionAnswering(CollabCamembertHead, CamembertForQuestionAnswering): ...


class CollabCamembertForMultipleChoice(CollabCamembertHead, CamembertForMultipleChoice): ...
