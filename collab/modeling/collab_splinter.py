"""Collaborative Splinter."""

from transformers.models.splinter import modeling_splinter as native

from .collab_family import BertEncoderFamily


class CollabSplinterModel(BertEncoderFamily, native.SplinterModel):
    native_prefix = "Splinter"
    not_converted = ["{}ForPreTraining"]  # which takes marked questions only
