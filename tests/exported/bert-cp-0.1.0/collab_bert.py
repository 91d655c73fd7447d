"""Collaborative BERT."""

from huggingface_hub.dataclasses import strict
from transformers.models.bert.configuration_bert import BertConfig
from transformers.models.bert.modeling_bert import (
    BertCrossAttention,
    BertForMaskedLM,
    BertForMultipleChoice,
    BertForNextSentencePrediction,
    BertForPreTraining,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertLMHeadModel,
    BertModel,
    BertSelfAttention,
)

from .collab_attention import CollaborativeCrossAttention, CollaborativeSelfAttention
from .collab_config import CollaborativeConfig
from .collab_model import CollaborativeBase, CollaborativeHead


@strict
class CollabBertConfig(CollaborativeConfig, BertConfig):
    model_type = "collab_bert"


class CollabBertModel(CollaborativeBase, BertModel):
    config_class = CollabBertConfig
    attention_classes = {
        BertSelfAttention: CollaborativeSelfAttention,
        BertCrossAttention: CollaborativeCrossAttention,
    }


class CollabBertHead(CollaborativeHead):
    base_class = CollabBertModel


class CollabBertForMaskedLM(CollabBertHead, BertForMaskedLM): ...


class CollabBertLMHeadModel(CollabBertHead, BertLMHeadModel): ...


class CollabBertForPreTraining(CollabBertHead, BertForPreTraining): ...


class CollabBertForNextSentencePrediction(CollabBertHead, BertForNextSentencePrediction): ...


class CollabBertForSequenceClassification(CollabBertHead, BertForSequenceClassification): ...


class CollabBertForTokenClassification(CollabBertHead, BertForTokenClassification): ...


class CollabBertForQuestionAnswering(CollabBertHead, BertForQuestionAnswering): ...


class CollabBertForMultipleChoice(CollabBertHead, BertForMultipleChoice): ...
