"""Collaborative Llama."""

from transformers.models.llama import modeling_llama as native

from .collab_rotary import LlamaFamily


class CollabLlamaModel(LlamaFamily, native.LlamaModel):
    native_prefix = "Llama"
