"""Collaborative T5."""

from transformers.models.t5 import modeling_t5 as native

from .collab_t5_attention import T5Family


class CollabT5Model(T5Family, native.T5Model):
    native_prefix = "T5"
