"""Collaborative Qwen2."""

from transformers.models.qwen2 import modeling_qwen2 as native

from .collab_rotary import LlamaFamily


class CollabQwen2Model(LlamaFamily, native.Qwen2Model):
    native_prefix = "Qwen2"
