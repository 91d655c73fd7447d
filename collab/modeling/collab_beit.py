"""Collaborative BEiT."""

from typing import Any

from torch import Tensor
from transformers.models.beit import modeling_beit as native

from .collab_layouts import AttentionWithOProj, ViTFamily


class CollabBeitAttention(AttentionWithOProj):
    """Gets relative position biases, where the model has any, in the mask, which then is of every head."""

    long_kinds = ()

    @classmethod
    def scores_input(cls, native: Any, given: dict[str, Any]) -> tuple[Any, Tensor | None]:
        mask = given.get("attention_mask")
        return (mask, None) if mask is None or mask.shape[1] == 1 else (None, mask)

    def forward(  # type: ignore[override]
        self, hidden_states: Tensor, attention_mask: Any = None, **kwargs: Any
    ) -> tuple[Tensor, Tensor | None]:
        """As the native layer; see `CollaborativeSelfAttention.forward`."""
        mask, bias = self.scores_input(self, {"attention_mask": attention_mask})
        return super().forward(hidden_states, mask, position_bias=bias, **kwargs)


class CollabBeitModel(ViTFamily, native.BeitModel):
    native_prefix = "Beit"
    native_attention = {"{}Attention": CollabBeitAttention}
