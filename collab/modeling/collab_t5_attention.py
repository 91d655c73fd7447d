"""The attention of T5's encoder and of its descendants'.

This file is copied into every exported model that uses it; it imports only torch, transformers and its own folder.
"""

from typing import Any

from torch import Tensor, nn
from transformers.models.t5.modeling_t5 import T5Attention

from .collab_attention import CollaborativeSelfAttention
from .collab_config import AttentionSpec


class CollabT5Attention(CollaborativeSelfAttention):
    """Scores are not scaled; the first layer computes a relative position bias, which the layers after it pass on."""

    native_names = {
        "query": "q",
        "key": "k",
        "value": "v",
        "dense": "o",
        "relative_attention_bias": "relative_attention_bias",
    }
    native_heads = "n_heads"
    native_weights = 2
    scaled = False
    relative_attention_bias: nn.Embedding

    def __init__(self, native: Any, spec: AttentionSpec, config: Any) -> None:
        super().__init__(native, spec, config)
        self.is_decoder = False
        self.relative_attention_num_buckets = native.relative_attention_num_buckets
        self.relative_attention_max_distance = native.relative_attention_max_distance

    _relative_position_bucket = staticmethod(T5Attention._relative_position_bucket)
    compute_bias = T5Attention.compute_bias

    @classmethod
    def scores_input(cls, native: Any, given: dict[str, Any]) -> tuple[Any, Tensor | None]:
        bias, length = given.get("position_bias"), given["hidden_states"].shape[1]
        if bias is None and hasattr(native, "relative_attention_bias"):
            bias = native.compute_bias(length, length)
        return given.get("mask"), bias

    def forward(  # type: ignore[override]
        self, hidden_states: Tensor, mask: Any = None, position_bias: Tensor | None = None, **kwargs: Any
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """As the native layer; see `CollaborativeSelfAttention.forward`."""
        mask, bias = self.scores_input(
            self, {"hidden_states": hidden_states, "mask": mask, "position_bias": position_bias}
        )
        output, weights = super().forward(hidden_states, mask, position_bias=bias, **kwargs)
        return output, bias, weights
