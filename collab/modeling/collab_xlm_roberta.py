"""Collaborative XLM-RoBERTa."""

from huggingface_hub.dataclasses import strict
from transformers.models.xlm_roberta.configuration_xlm_roberta import XLMRobertaConfig
from transformers.models.xlm_roberta.modeling_xlm_roberta import (
    XLMRobertaCrossAttention,
    XLMRobertaForCausalLM,
    XLMRobertaForMaskedLM,
    XLMRobertaForMultipleChoice,
    XLMRobertaForQuestionAnswering,
    XLMRobertaForSequenceClassification,
    XLMRobertaForTokenClassification,
    XLMRobertaModel,
    XLMRobertaSelfAttention,
)

from .collab_attention import CollaborativeCrossAttention, CollaborativeSelfAttention
from .collab_config import CollaborativeConfig
from .collab_model import CollaborativeBase, CollaborativeHead


@strict
class CollabXLMRobertaConfig(CollaborativeConfig, XLMRobertaConfig):
    model_type = "collab_xlm-roberta"


class CollabXLMRobertaModel(CollaborativeBase, XLMRobertaModel):
    config_class = CollabXLMRobertaConfig
    attention_classes = {
        XLMRobertaSelfAttention: CollaborativeSelfAttention,
        XLMRobertaCrossAttention: CollaborativeCrossAttention,
    }


class CollabXLMRobertaHead(CollaborativeHead):
    base_class = CollabXLMRobertaModel


class CollabXLMRobertaForMaskedLM(CollabXLMRobertaHead, XLMRobertaForMaskedLM): ...


class CollabXLMRobertaForCausalLM(CollabXLMRobertaHead, XLMRobertaForCausalLM): ...


class CollabXLMRobertaForSequenceClassification(CollabXLMRobertaHead, XLMRobertaForSequenceClassification): ...


class CollabXLMRobertaForTokenClassification(CollabXLMRobertaHead, XLMRobertaForTokenClassification): ...


class CollabXLMRobertaForQuestionAnswering(CollabXLMRobertaHead, XLMRobertaForQuestionAnswering): ...


class CollabXLMRobertaForMultipleChoice(CollabXLMRobertaHead, XLMRobertaForMultipleChoice): ...
