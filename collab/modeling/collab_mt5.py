"""Collaborative mT5."""

from transformers.models.mt5 import modeling_mt5 as native

from .collab_t5_attention import T5Family


class CollabMT5Model(T5Family, native.MT5Model):
    native_prefix = "MT5"
