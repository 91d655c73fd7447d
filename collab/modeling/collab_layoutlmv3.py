"""Collaborative LayoutLMv3."""

from typing import Any

from torch import Tensor
from transformers.models.layoutlmv3 import modeling_layoutlmv3 as native

from .collab_attention import CollaborativeSelfAttention
from .collab_family import BertEncoderFamily


class CollabLayoutLMv3Attention(CollaborativeSelfAttention):
    """Adds biases by relative position and place on the page, which do not depend on queries or keys."""

    long_kinds = ()

    @classmethod
    def scores_input(cls, native: Any, given: dict[str, Any]) -> tuple[Any, Tensor | None]:
        # Like the native layer, which adds those of places on the page only to those of positions.
        names = ("rel_pos", "rel_2d_pos") if given.get("rel_pos") is not None else ()
        biases = [bias for name in names if (bias := given.get(name)) is not None]
        return given.get("attention_mask"), sum(biases) / native.attention_head_size**0.5 if biases else None

    def forward(  # type: ignore[override]
        self,
        hidden_states: Tensor,
        attention_mask: Any = None,
        rel_pos: Any = None,
        rel_2d_pos: Any = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """As the native layer; see `CollaborativeSelfAttention.forward`."""
        _, bias = self.scores_input(self, {"rel_pos": rel_pos, "rel_2d_pos": rel_2d_pos})
        return super().forward(hidden_states, attention_mask, position_bias=bias, **kwargs)


class CollabLayoutLMv3Model(BertEncoderFamily, native.LayoutLMv3Model):
    native_prefix = "LayoutLMv3"
    native_attention = {"{}SelfAttention": CollabLayoutLMv3Attention}
