"""Collaborative DistilBERT."""

from huggingface_hub.dataclasses import strict
from transformers.models.distilbert.configuration_distilbert import DistilBertConfig
from transformers.models.distilbert.modeling_distilbert import (
    DistilBertForMaskedLM,
    DistilBertForMultipleChoice,
    DistilBertForQuestionAnswering,
    DistilBertForSequenceClassification,
    DistilBertForTokenClassification,
    DistilBertModel,
    DistilBertSelfAttention,
)

from .collab_attention import CollaborativeSelfAttention
from .collab_config import CollaborativeConfig
from .collab_model import CollaborativeBase, CollaborativeHead


@strict
class CollabDistilBertConfig(CollaborativeConfig, DistilBertConfig):
    model_type = "collab_distilbert"


class CollabDistilBertAttention(CollaborativeSelfAttention):
    native_names = {"query": "q_lin", "key": "k_lin", "value": "v_lin", "dense": "out_lin"}


class CollabDistilBertModel(CollaborativeBase, DistilBertModel):
    config_class = CollabDistilBertConfig
    attention_classes = {DistilBertSelfAttention: CollabDistilBertAttention}


class CollabDistilBertHead(CollaborativeHead):
    base_class = CollabDistilBertModel


class CollabDistilBertForMaskedLM(CollabDistilBertHead, DistilBertForMaskedLM): ...


class CollabDistilBertForSequenceClassification(CollabDistilBertHead, DistilBertForSequenceClassification): ...


class CollabDistilBertForTokenClassification(CollabDistilBertHead, DistilBertForTokenClassification): ...


class CollabDistilBertForQuestionAnswering(CollabDistilBertHead, DistilBertForQuestionAnswering): ...


class CollabDistilBertForMultipleChoice(CollabDistilBertHead, DistilBertForMultipleChoice): ...
