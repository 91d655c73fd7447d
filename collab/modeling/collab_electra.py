"""Collaborative ELECTRA."""

from huggingface_hub.dataclasses import strict
from transformers.models.electra.configuration_electra import ElectraConfig
from transformers.models.electra.modeling_electra import (
    ElectraCrossAttention,
    ElectraForCausalLM,
    ElectraForMaskedLM,
    ElectraForMultipleChoice,
    ElectraForPreTraining,
    ElectraForQuestionAnswering,
    ElectraForSequenceClassification,
    ElectraForTokenClassification,
    ElectraModel,
    ElectraSelfAttention,
)

from .collab_attention import CollaborativeCrossAttention, CollaborativeSelfAttention
from .collab_config import CollaborativeConfig
from .collab_model import CollaborativeBase, CollaborativeHead


@strict
class CollabElectraConfig(CollaborativeConfig, ElectraConfig):
    model_type = "collab_electra"


class CollabElectraModel(CollaborativeBase, ElectraModel):
    config_class = CollabElectraConfig
    attention_classes = {
        ElectraSelfAttention: CollaborativeSelfAttention,
        ElectraCrossAttention: CollaborativeCrossAttention,
    }


class CollabElectraHead(CollaborativeHead):
    base_class = CollabElectraModel


class CollabElectraForMaskedLM(CollabElectraHead, ElectraForMaskedLM): ...


class CollabElectraForCausalLM(CollabElectraHead, ElectraForCausalLM): ...


class CollabElectraForPreTraining(CollabElectraHead, ElectraForPreTraining): ...


class CollabElectraForSequenceClassification(CollabElectraHead, ElectraForSequenceClassification): ...


class CollabElectraForTokenClassification(CollabElectraHead, ElectraForTokenClassification): ...


class CollabElectraForQuestionAnswering(CollabElectraHead, ElectraForQuestionAnswering): ...


class CollabElectraForMultipleChoice(CollabElectraHead, ElectraForMultipleChoice): ...
