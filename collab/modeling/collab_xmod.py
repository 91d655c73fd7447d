"""Collaborative X-MOD."""

from transformers.models.xmod import modeling_xmod as native

from .collab_family import BertFamily


class CollabXmodModel(BertFamily, native.XmodModel):
    native_prefix = "Xmod"
