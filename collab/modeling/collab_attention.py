"""Collaborative attention: the layer, in its three forms, for every family.

Notation: B batch, T query tokens, S key tokens, D hidden size (D_q on the query side, D_k on the key side), H heads,
d head dimension of the original layer, K = H·d, R rank, x (B, T, D_q) query input, y (B, S, D_k) key input.

Head h scores  s_h(x, y) = (x W̃_Q G_h W̃_Kᵀ yᵀ + c_h·y) / √d  with G_h

- ``concat``: 0/1 diagonal; head h owns some of the R dimensions,
- ``cp``: diag(m_h), M ∈ R^{H×R} the mixing matrix (Cordonnier et al. 2020, equation 9),
- ``tucker``: a core in R^{R×R},

and c_h ∈ R^{D_k} the content bias, into which the original query bias went. Folded, c_h is W̃_K u_h with an offset u_h
of each head's query, and no additive bias is left. Values and output are the original ones. A layer may have only some
of the original's heads, or none; H is then the number that it has, and d stays.

This file is copied into every exported model; it imports only torch, transformers and its own folder.
"""

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask, create_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from .collab_cache import CachedAttention, own_cache
from .collab_config import LONG_KINDS, AttentionSpec
from .collab_forgetting import ForgettingLayer, Tokens, forgetting_layer
from .collab_kernel import (
    Scoring,
    additive_bias,
    additive_mask,
    attention_by_cost,
    content_as_columns,
    eager_attention_forward,
    is_recorded,
    one_row,
)
from .collab_long import attention_in_blocks, eager_attention_in_long_rows
from .collab_native import NativeAttention, as_linear


class CollaborativeAttention(NativeAttention, CachedAttention):
    """Multi-head attention with query and key projections shared by the heads; base of self- and cross-attention.

    It is built from the native layer that it replaces: the value projection and everything after the attention stay
    the same modules, under the same names in every family (``query``, ``key``, ``value``, ``dense``).

    Args:
        native: the family's own attention layer.
        spec: form, rank, content and heads.
        config: the model's config; its ``_attn_implementation`` selects the kernel at every call.

    Class attributes:
        scaled: whether scores are divided by √d.
        long_kinds: the kinds of attention in long rows that self-attention of this class may have; none where scores
            depend on relative positions.
        path: path of the ``sdpa`` implementation: ``auto``, by cost, or ``fused`` or ``matmul``; may be set on a layer
            for benchmarks and tests.
    """

    scaled: ClassVar[bool] = True
    long_kinds: ClassVar[tuple[str, ...]] = LONG_KINDS
    path: str = "auto"

    dense: nn.Module

    def __init__(self, native: Any, spec: AttentionSpec, config: Any) -> None:
        native_query, native_key, native_value = (
            self.native_projection(native, role) for role in ("query", "key", "value")
        )
        total = self.heads_of(native)
        head_dim = native_query.out_features // total  # d
        widths = native_query.in_features, native_key.in_features
        super().__init__(spec, total, head_dim, widths, content=native_query.bias is not None)
        if not self.scaled:
            self.scaling = 1.0
        self.config = getattr(native, "config", None) or config  # a tower's own, in a model of several
        self.value_width = spec.value_width or head_dim
        self.is_causal = getattr(native, "is_causal", False)
        self.kind = self.kind_of(native)
        if spec.long is not None and (self.kind == "cross" or spec.long.kind not in self.long_kinds):
            raise ValueError(f"{type(self).__name__} of a {self.kind} has no {spec.long.kind} attention.")
        self.layer_idx: Any = getattr(native, "layer_idx", None)
        dropout: Any = getattr(native, self.native_dropout)
        self.attention_dropout: float = getattr(dropout, "p", dropout)
        for name, native_name in self.native_names.items():
            if name not in ("query", "key", "value") and hasattr(native, native_name):
                setattr(self, name, as_linear(getattr(native, native_name)))
        if not self.heads:
            return
        self.value = native_value
        width = self.num_attention_heads * self.value_width
        if width != native_value.out_features:
            self.value = nn.Linear(native_value.in_features, width, bias=native_value.bias is not None)

    def output_of_heads(self, native: nn.Linear) -> nn.Module:
        """The output projection W_O for the heads of this layer, to replace the native one."""
        if not self.heads:
            return OutputBias(native.out_features, native.bias is not None)
        width = self.num_attention_heads * self.value_width
        if width == native.in_features:
            return native
        return nn.Linear(width, native.out_features, bias=native.bias is not None)

    def project_and_attend(
        self,
        queries: Tensor,
        keys: Tensor,
        value: Tensor,
        attention_mask: Any,
        position_bias: Tensor | None = None,
        positions: Any = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """Attention of one input to another, without a cache.

        Args:
            queries: x, (B, T, D_q).
            keys: y, (B, S, D_k).
            value: (B, H, S, d).
            attention_mask: as in `attend`.
            position_bias: as in `attend`, but for all heads of the native layer.
            positions: as from `positions_input`.
            **kwargs: for `attend`.

        Returns:
            As `attend`.
        """
        projected, shared = self.project(queries, keys, positions)
        long = self.spec.long
        if long is not None and self.kind == "decoder" and self._in_blocks(projected.shape[1]):
            entry = self.key_entry(shared, self.content(keys))
            return self._attend_to_held(ForgettingLayer(long), projected, entry, value, attention_mask, **kwargs)
        content, bias = self.bias(keys), self.of_heads(position_bias)
        return self.attend(projected, self.keys_by_head(shared), value, content, attention_mask, bias, **kwargs)

    def of_heads(self, position_bias: Tensor | None) -> Tensor | None:
        """The heads of this layer of a position bias (1 or B, H, T, S) for all native ones."""
        if position_bias is None or self.spec.heads is None:
            return position_bias
        return position_bias[:, list(self.heads)]

    def attend(
        self,
        projected: Tensor,
        key: Tensor,
        value: Tensor,
        content: Tensor | None,
        attention_mask: Any,
        position_bias: Tensor | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """Attention by the kernel that the config names.

        Args:
            projected: X W̃_Q, (B, T, R).
            key: (B, 1 or H, S, r).
            value: (B, H, S, d).
            content: (B, H, S) or None.
            attention_mask: None; boolean, True where a key is seen; additive; or a flex attention block mask.
            position_bias: additive and already scaled, (1 or B, H, T, S), or None.
            **kwargs: arguments of the kernel; ``output_attentions`` requests weights and therefore the eager kernel.

        Returns:
            The heads' outputs side by side, (B, T, H·d), and attention weights (B, H, T, S) if the kernel returns any.
        """
        implementation = self.config._attn_implementation
        if kwargs.get("output_attentions"):
            implementation = "eager"
        dropout = self.attention_dropout if self.training else 0.0
        eager = implementation == "eager"
        is_causal = self.is_causal if kwargs.get("is_causal") is None else kwargs["is_causal"]
        long = self.spec.long if self.kind == "encoder" and self._in_blocks(projected.shape[1]) else None
        if eager or implementation == "sdpa" or long is not None:
            attention_mask = one_row(_dense_mask(attention_mask, projected, key.shape[2]))
        scoring = Scoring(content, attention_mask, position_bias, self.scaling, dropout, is_causal)
        if long is not None and not eager:
            mix = self.mixer(projected.dtype)
            return attention_in_blocks(mix, projected, key, value, scoring, long, self.path).flatten(-2), None
        if implementation == "sdpa":
            output = attention_by_cost(self.mixer(projected.dtype), projected, key, value, scoring, self.path)
            return output.flatten(-2), None
        query = self._mixed(projected)
        if long is not None:
            seen, shown = eager_attention_in_long_rows(self, query, key, value, scoring, long)
            return seen.flatten(-2), shown
        # Most kernels accept no additive bias, and adding one takes another pass over all scores, unless it is added to
        # a mask of one row first. So the content becomes columns of the keys that each head's query reads.
        if content is not None and not (eager and attention_mask is not None and attention_mask.shape[-2] == 1):
            query, key = content_as_columns(query, key, content)
            content = None
        if eager:
            bias = additive_bias(content, position_bias, self.scaling)
            attention_mask = additive_mask(bias, attention_mask, is_causal, query, key)
        else:
            if position_bias is not None:
                kwargs["position_bias"] = position_bias.expand(query.shape[0], -1, -1, -1)
            key = key.expand(-1, self.num_attention_heads, -1, -1)
        interface: Callable[..., tuple[Tensor, Tensor | None]] = ALL_ATTENTION_FUNCTIONS.get_interface(
            implementation, eager_attention_forward
        )
        output, weights = interface(
            self, query, key, value, attention_mask, dropout=dropout, scaling=self.scaling, **kwargs
        )  # (B, T, H, d)
        return output.flatten(-2), weights

    def _in_blocks(self, length: int) -> bool:
        """Whether rows of so many tokens are long. A traced graph computes all rows as short ones."""
        long = self.spec.long
        return long is not None and not is_recorded() and length >= long.dense_below

    def _attend_to_held(
        self,
        held: ForgettingLayer,
        projected: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Any,
        step: bool = False,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """As `attend`, of tokens of a decoder's long rows to what is held of those before them, and to themselves.

        Args:
            held: what is held, to which these tokens are added.
            projected: X W̃_Q, (B, T, R).
            key: entries of these tokens, see `CachedAttention`.
            value: entries of these tokens.
            attention_mask: as in `attend`, of all tokens of the rows, and of nothing but padding and what follows.
            step: as in `_attend_to_cached`.
            **kwargs: for `attend`.
        """
        length, total = projected.shape[1], held.length + projected.shape[1]
        mask = _dense_mask(attention_mask, projected, total)
        tokens = Tokens.of_mask(mask, length, total, projected.device)
        eager = self.config._attn_implementation == "eager" or kwargs.get("output_attentions")
        dropout = self.attention_dropout if self.training else 0.0
        contexts, shown = [], []
        for part in held.read(key, value, tokens):
            queries = projected[:, part.tokens]
            if step:
                contexts.append(self.attend_as_step(queries, part.key, part.value, part.mask))
                continue
            keys, values, content = self.read(part.key, part.value)
            scoring = Scoring(content, part.mask, None, self.scaling, dropout, part.mask is None)
            if not eager:
                output = attention_by_cost(self.mixer(queries.dtype), queries, keys, values, scoring, self.path)
                contexts.append(output.flatten(-2))
                continue
            query = self._mixed(queries)
            added = scoring.added(query, keys)
            output, weights = eager_attention_forward(self, query, keys, values, added, self.scaling, dropout)
            contexts.append(output.flatten(-2))
            shown.append(held.by_token(weights, part, tokens, total))
        return torch.cat(contexts, dim=1), torch.cat(shown, dim=2) if shown else None

    def attend_to_itself(
        self,
        hidden_states: Tensor,
        attention_mask: Any,
        past_key_values: Any,
        position_bias: Tensor | None = None,
        positions: Any = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """The layer's output (B, T, D) and weights (B, H, T, S) if there are any, of a sequence that attends to itself.

        Args:
            hidden_states: x = y, (B, T, D).
            attention_mask: as in `attend`.
            past_key_values: a transformers cache, see `CachedAttention`.
            position_bias: as in `project_and_attend`.
            positions: as from `positions_input`, for these tokens.
            **kwargs: for `attend`.
        """
        cache = own_cache(past_key_values)
        if not self.heads:
            seen = hidden_states.shape[1]
            if cache is not None:  # whose first layer counts the tokens for the whole model
                nothing = hidden_states.new_zeros(len(hidden_states), 1, seen, 1)
                seen = cache.update(nothing, nothing, self.layer_idx)[0].shape[2]
            return self.without_heads(hidden_states, seen)
        if cache is None:
            value = self.values(hidden_states)
            context, weights = self.project_and_attend(
                hidden_states, hidden_states, value, attention_mask, position_bias, positions, **kwargs
            )
        else:
            step = self._is_step(hidden_states, attention_mask, kwargs)
            projected, key, value = self.project_for_cache(hidden_states, positions, cache, step)
            held = None
            if self.spec.long is not None and not is_recorded():
                held = forgetting_layer(cache, self.layer_idx, self.spec.long, projected.shape[1])
            if held is not None:
                context, weights = self._attend_to_held(held, projected, key, value, attention_mask, step, **kwargs)
                return self.output(context, hidden_states), weights
            key, value = cache.update(key, value, self.layer_idx)
            bias = self.of_heads(position_bias)
            context, weights = self._attend_to_cached(projected, key, value, attention_mask, bias, step, **kwargs)
        return self.output(context, hidden_states), weights

    def attend_to_other(
        self, hidden_states: Tensor, other: Any, attention_mask: Any, past_key_values: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor | None]:
        """The layer's output (B, T, D_q) and weights (B, H, T, S) if there are any, of attention to another sequence.

        Args:
            hidden_states: x, (B, T, D_q).
            other: y, (B, S, D_k); not needed once the cache holds its keys.
            attention_mask: over y, as in `attend`.
            past_key_values: a transformers encoder-decoder cache, which holds of y what `attend_to_itself` says.
            **kwargs: for `attend`.
        """
        if not self.heads:
            return self.without_heads(hidden_states, 0 if other is None else other.shape[1])
        if past_key_values is not None and past_key_values.is_updated.get(self.layer_idx):
            layer = past_key_values.cross_attention_cache.layers[self.layer_idx]
            cached = layer.keys, layer.values
        elif past_key_values is not None:
            cache = past_key_values.cross_attention_cache
            cached = cache.update(*self.cached(other, cache), self.layer_idx)
            past_key_values.is_updated[self.layer_idx] = True
        else:
            cached = self.cached(other, None)
        step = self._is_step(hidden_states, attention_mask, kwargs)
        projected = self.query_of_step(hidden_states) if step else self.query(hidden_states)
        context, weights = self._attend_to_cached(projected, *cached, attention_mask, None, step, **kwargs)
        return self.output(context, hidden_states), weights

    def without_heads(self, hidden_states: Tensor, keys: int) -> tuple[Tensor, Tensor]:
        """The result of `forward` without heads: the output projection's bias, and no weights, (B, 0, T, S)."""
        batch, length, _ = hidden_states.shape
        context = hidden_states.new_zeros(batch, length, 0)
        return self.output(context, hidden_states), hidden_states.new_zeros(batch, 0, length, keys)

    def output(self, context: Tensor, hidden_states: Tensor) -> Tensor:
        """The part of the family's attention layer after the heads: its output projection, if it owns one."""
        return self.dense(context) if "dense" in self.native_names else context

    def _attend_to_cached(
        self,
        projected: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Any,
        position_bias: Tensor | None,
        step: bool,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """As `attend`, to the entries of a cache.

        Args:
            projected: shared queries, (B, T, R); in a step with the offset of shared queries.
            key: an entry.
            value: an entry.
            attention_mask: as in `attend`.
            position_bias: as in `attend`.
            step: as from `_is_step`.
            **kwargs: for `attend`.
        """
        if step:
            return self.attend_as_step(projected, key, value, attention_mask, position_bias), None
        keys, values, content = self.read(key, value)
        return self.attend(projected, keys, values, content, attention_mask, position_bias, **kwargs)

    def _is_step(self, states: Tensor, attention_mask: Any, kwargs: dict[str, Any]) -> bool:
        """Whether one token of each row is computed without gradients, on a CPU, by the ``sdpa`` implementation.

        Its fused kernel is faster in float16.
        """
        return (
            states.shape[1] == 1
            and not is_recorded()
            and not torch.is_grad_enabled()
            and states.device.type == "cpu"
            and states.dtype in (torch.float32, torch.bfloat16)
            and self.path == "auto"
            and self.config._attn_implementation == "sdpa"
            and not kwargs.get("output_attentions")
            and not isinstance(attention_mask, BlockMask)
            and not (self.training and self.attention_dropout)
        )


class CollaborativeSelfAttention(CollaborativeAttention):
    """Attention of a sequence to itself, with an optional cache for decoders."""

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Any = None,
        past_key_values: Any = None,
        encoder_hidden_states: Tensor | None = None,
        position_bias: Tensor | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """See `attend_to_itself`. Blocks for either kind of attention pass `encoder_hidden_states` to both."""
        return self.attend_to_itself(hidden_states, attention_mask, past_key_values, position_bias, **kwargs)


class CollaborativeCrossAttention(CollaborativeAttention):
    """Attention of one sequence to another, whose keys and values are cached after the first step."""

    crosses = True

    @classmethod
    def keys_input(cls, native: Any, given: dict[str, Any]) -> Tensor:
        return given["encoder_hidden_states"]

    def forward(
        self,
        hidden_states: Tensor,
        encoder_hidden_states: Any = None,
        attention_mask: Any = None,
        past_key_values: Any = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """See `attend_to_other`."""
        return self.attend_to_other(hidden_states, encoder_hidden_states, attention_mask, past_key_values, **kwargs)


class OutputBias(nn.Module):
    """An output projection without heads before it: its bias, for every token.

    Args:
        width: D.
        bias: whether there is one; zeros otherwise.
    """

    def __init__(self, width: int, bias: bool) -> None:
        super().__init__()
        self.width = width
        self.bias = nn.Parameter(torch.empty(width)) if bias else None

    def forward(self, context: Tensor) -> Tensor:
        """(B, T, 0) → (B, T, D)."""
        output = context.new_zeros(*context.shape[:-1], self.width)
        return output if self.bias is None else output + self.bias


def _dense_mask(mask: Any, projected: Tensor, seen: int) -> Any:
    """A flex attention block mask over so many keys as a boolean mask, for other kernels; other masks unchanged."""
    if not isinstance(mask, BlockMask):
        return mask
    return create_mask(mask.mask_mod, mask.shape[0], None, projected.shape[1], seen, device=projected.device)
