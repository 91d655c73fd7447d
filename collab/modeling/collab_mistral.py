"""Collaborative Mistral."""

from transformers.models.mistral import modeling_mistral as native

from .collab_rotary import LlamaFamily


class CollabMistralModel(LlamaFamily, native.MistralModel):
    native_prefix = "Mistral"
