"""Collaborative Data2Vec for text."""

from transformers.models.data2vec import modeling_data2vec_text as native

from .collab_family import BertFamily


class CollabData2VecTextModel(BertFamily, native.Data2VecTextModel):
    native_prefix = "Data2VecText"
