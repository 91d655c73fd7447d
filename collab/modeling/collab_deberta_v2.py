"""Collaborative DeBERTa-v2 and v3, where content and positions share their projections."""

from typing import Any

from transformers.models.deberta_v2 import modeling_deberta_v2 as native

from .collab_disentangled import CollaborativeDisentangledAttention
from .collab_family import CollaborativeFamily
from .collab_feed_forward import FeedForward


class CollabDebertaV2Model(CollaborativeFamily, native.DebertaV2Model):
    native_attention = {"DisentangledSelfAttention": CollaborativeDisentangledAttention}
    native_feed_forward = {"DebertaV2Layer": FeedForward(method="")}

    @classmethod
    def unsupported(cls, config: Any) -> str | None:
        apart = config.relative_attention and config.pos_att_type and not getattr(config, "share_att_key", False)
        return (
            "its relative positions have query and key projections of their own (share_att_key=false), so there is no "
            "single product of projections for a head to share"
            if apart
            else None
        )
