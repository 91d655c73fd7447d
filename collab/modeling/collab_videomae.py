"""Collaborative VideoMAE."""

from transformers.models.videomae import modeling_videomae as native

from .collab_attention import CollaborativeSelfAttention
from .collab_family import BertEncoderFamily


class CollabVideoMAEAttention(CollaborativeSelfAttention):
    native_dropout = "dropout_prob"


class CollabVideoMAEModel(BertEncoderFamily, native.VideoMAEModel):
    native_prefix = "VideoMAE"
    native_attention = {"{}SelfAttention": CollabVideoMAEAttention}
    not_converted = ["{}ForPreTraining"]  # whose decoder has another width
