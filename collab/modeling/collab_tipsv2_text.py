"""Collaborative text tower of TIPSv2."""

from transformers.models.tipsv2 import modeling_tipsv2 as native

from .collab_family import collaborative_family
from .collab_feed_forward import FeedForward
from .collab_layouts import AttentionWithOutProj
from .collab_model import CollaborativeBase


@collaborative_family()
class CollabTipsv2TextModel(CollaborativeBase, native.Tipsv2TextModel):
    attention_classes = {native.Tipsv2TextAttention: AttentionWithOutProj}
    feed_forward_classes = {native.Tipsv2MLP: FeedForward("fc1", "fc2")}
