"""Collaborative TAPAS."""

from transformers.models.tapas import modeling_tapas as native

from .collab_family import BertEncoderFamily


class CollabTapasModel(BertEncoderFamily, native.TapasModel):
    native_prefix = "Tapas"
