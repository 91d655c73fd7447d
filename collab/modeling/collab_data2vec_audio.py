"""Collaborative Data2Vec audio."""

from transformers.models.data2vec import modeling_data2vec_audio as native

from .collab_family import collaborative_family
from .collab_feed_forward import FeedForward
from .collab_layouts import AttentionWithOutProj
from .collab_model import CollaborativeBase


@collaborative_family()
class CollabData2VecAudioModel(CollaborativeBase, native.Data2VecAudioModel):
    attention_classes = {native.Data2VecAudioAttention: AttentionWithOutProj}
    feed_forward_classes = {native.Data2VecAudioFeedForward: FeedForward("intermediate_dense", "output_dense")}
