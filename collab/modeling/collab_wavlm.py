"""Collaborative WavLM, whose relative position bias each query multiplies by a gate that reads its hidden state."""

from typing import Any

from torch import Tensor, nn
from transformers.models.wavlm import modeling_wavlm as native

from .collab_kernel import additive_mask, eager_attention_forward
from .collab_layouts import AttentionWithOutProj, Wav2Vec2Family


class CollabWavLMAttention(AttentionWithOutProj):
    """The first layer computes the position bias, which those after it pass on; each has a gate of its own.

    It returns the attention weights of every head. The native layer returns their mean in the place of each.
    """

    native_names = AttentionWithOutProj.native_names | {
        name: name for name in ("gru_rel_pos_const", "gru_rel_pos_linear", "rel_attn_embed")
    }
    long_kinds = ()
    gru_rel_pos_const: nn.Parameter
    gru_rel_pos_linear: nn.Linear
    rel_attn_embed: nn.Embedding

    def __init__(self, native: Any, spec: Any, config: Any) -> None:
        super().__init__(native, spec, config)
        self.num_buckets = native.num_buckets
        self.max_distance = native.max_distance

    compute_bias: Any = native.WavLMAttention.compute_bias
    _relative_positions_bucket: Any = native.WavLMAttention._relative_positions_bucket

    @classmethod
    def scores_input(cls, native: Any, given: dict[str, Any]) -> tuple[Any, Tensor | None]:
        _, mask, bias = _added(native, given["hidden_states"], given.get("attention_mask"), given.get("position_bias"))
        return mask, bias

    @staticmethod
    def native_forward(
        native: Any, hidden_states: Tensor, attention_mask: Any = None, position_bias: Any = None, **kwargs: Any
    ) -> tuple[Tensor, Tensor, Tensor]:
        """As the native layer's forward, but with the weights of each head, (B, H, T, T)."""
        position_bias, mask, bias = _added(native, hidden_states, attention_mask, position_bias)
        query, key, value = (
            layer(hidden_states).unflatten(-1, (native.num_heads, -1)).transpose(1, 2)  # (B, H, T, d)
            for layer in (native.q_proj, native.k_proj, native.v_proj)
        )
        added = additive_mask(bias, mask, False, query, key)
        dropout = native.dropout if native.training else 0.0
        output, weights = eager_attention_forward(native, query, key, value, added, native.scaling, dropout)
        return native.out_proj(output.flatten(-2)), weights, position_bias

    def forward(  # type: ignore[override]  # as WavLM's layer, which returns the position bias as well
        self,
        hidden_states: Tensor,
        attention_mask: Any = None,
        position_bias: Tensor | None = None,
        index: int = 0,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None, Tensor]:
        """As the native layer; see `attend_to_itself`."""
        position_bias, mask, bias = _added(self, hidden_states, attention_mask, position_bias)
        output, weights = self.attend_to_itself(hidden_states, mask, None, position_bias=bias, **kwargs)
        return output, weights, position_bias


def _added(
    layer: Any, hidden_states: Tensor, attention_mask: Any, position_bias: Tensor | None
) -> tuple[Tensor, Tensor | None, Tensor]:
    """The bias that a layer adds to the scores of all its heads.

    Args:
        layer: native or collaborative.
        hidden_states: (B, T, D).
        attention_mask: 1 for tokens, 0 for padding, (B, T), or None.
        position_bias: what the layer before passed on; None in the first one.

    Returns:
        The bias to pass on, (1 or B, H, T, T); the mask, (B, 1, 1, T); and the bias times the gate, (B, H, T, T).
    """
    length = hidden_states.shape[1]
    if position_bias is None:
        position_bias = layer.compute_bias(length, length)
    heads = layer.gru_rel_pos_const.shape[1]
    position_bias = position_bias.reshape(-1, heads, length, length)  # native layers pass on (B·H, T, T)
    mask = None if attention_mask is None else attention_mask.eq(1)[:, None, None]
    return position_bias, mask, _gate(layer, hidden_states) * position_bias


def _gate(layer: Any, hidden_states: Tensor) -> Tensor:
    """The gate of each query in each head, (B, H, T, 1)."""
    heads = layer.gru_rel_pos_const.shape[1]
    by_head = hidden_states.unflatten(-1, (heads, -1)).transpose(1, 2)  # (B, H, T, D/H)
    read = layer.gru_rel_pos_linear(by_head).unflatten(-1, (2, 4)).sum(-1)  # (B, H, T, 2)
    first, second = read.sigmoid().chunk(2, dim=-1)
    return first * (second * layer.gru_rel_pos_const - 1) + 2


class CollabWavLMModel(Wav2Vec2Family, native.WavLMModel):
    native_prefix = "WavLM"
    native_attention = {"{}Attention": CollabWavLMAttention}
