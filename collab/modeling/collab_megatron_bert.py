"""Collaborative MegatronBERT."""

from transformers.models.megatron_bert import modeling_megatron_bert as native

from .collab_family import BertEncoderFamily


class CollabMegatronBertModel(BertEncoderFamily, native.MegatronBertModel):
    native_prefix = "MegatronBert"
