"""What a cache holds of a collaborative layer, and attention of a step of writing to it.

Of each token a cache holds one key for all heads, R numbers, with the content biases of the H heads beside it; of heads
with equally many dimensions in the concat form it holds the key of each head, as the original's cache does, which a
step reads in less time. Values are by head. The notation is that of `collab_attention`.

This file is copied into every exported model; it imports only torch, transformers and its own folder.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.cache_utils import EncoderDecoderCache

from .collab_projections import SharedProjections, plus, repeated
from .collab_step import SideBySide, attention_of_one_token, side_by_side


class CachedAttention(SharedProjections):
    """Shared projections with values, the entries of a cache that they give, and a step that reads the entries.

    Entries are keys (B, 1, S, R or R + H), one for all heads, or by head (B, K, S, r or r + 1), each for H / K
    neighbouring heads; and values (B, groups, S, d), each for H / groups neighbouring heads. A static cache asks for as
    many keys as values: where they are not, it holds one key for all heads and values (B, 1, S, groups·d).
    """

    value: nn.Module
    value_width: int
    layer_idx: Any
    _together: SideBySide | None = None

    def values(self, hidden_states: Tensor) -> Tensor:
        """Y W_V + b_V by head, shape (B, H, S, d)."""
        return self.values_by_head(self.value(hidden_states))

    def values_by_head(self, projected: Tensor) -> Tensor:
        """(B, S, ·) → (B, H, S, d); values that several heads share are repeated."""
        return repeated(self._values_apart(projected), self.num_attention_heads)

    def _values_apart(self, projected: Tensor) -> Tensor:
        """(B, S, ·) → (B, groups, S, d), each for H / groups neighbouring heads."""
        return projected.view(*projected.shape[:-1], -1, self.value_width).transpose(1, 2)

    def cached(self, hidden_states: Tensor, cache: Any) -> tuple[Tensor, Tensor]:
        """The entries of y, (B, S, D_k).

        Args:
            hidden_states: y.
            cache: the transformers cache that they are for, of this kind of attention alone; None for none.
        """
        key, value = self.key(hidden_states), self.value(hidden_states)
        return self._entries(key, self.content(hidden_states), value, cache)

    def project_for_cache(
        self, states: Tensor, positions: Any, cache: Any, step: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Shared queries (B, T, R), and entries, of x = y; of a step by one product, if there can be one.

        Args:
            states: x, (B, T, D).
            positions: as in `project`.
            cache: as in `cached`.
            step: whether this is one token of each row; the queries then include the offset of shared queries.
        """
        contents = [] if self.content_bias is None else [self.content_bias]
        layers = [self.query, self.key, self.value, *contents]
        query, key, value, *added = self._of_a_step(states, layers) if step else [layer(states) for layer in layers]
        query, key = self.placed(query, key, positions)
        return query, *self._entries(key, added[0] if added else None, value, cache)

    def query_of_step(self, states: Tensor) -> Tensor:
        """Shared queries of one token, (B, 1, D_q) → (B, 1, R), with the offset of shared queries."""
        (query,) = self._of_a_step(states, [self.query])
        return query

    def _of_a_step(self, states: Tensor, layers: list[nn.Module]) -> tuple[Tensor, ...]:
        """What layers give for one token, the first with the offset of shared queries."""
        self._together = side_by_side(self._together, layers, self.shared_offset)
        if self._together is not None:
            return self._together(states)
        first, *rest = [layer(states) for layer in layers]
        return (plus(first, self.shared_offset), *rest)

    def _entries(self, key: Tensor, content: Tensor | None, value: Tensor, cache: Any) -> tuple[Tensor, Tensor]:
        """Entries from shared keys (B, S, R), content biases (B, S, H) and values (B, S, ·)."""
        keys, values = self.key_entry(key, content), self._values_apart(value)
        if keys.shape[1] != values.shape[1] and _is_static(cache, self.layer_idx):
            return _one_key(key, content), value.unsqueeze(1)
        # A cache concatenates tensors that are contiguous in half of the time.
        return keys.contiguous(), values.contiguous()

    def key_entry(self, key: Tensor, content: Tensor | None) -> Tensor:
        """The first of the two entries, from shared keys (B, S, R) and content biases (B, S, H)."""
        if not self.has_equal_heads:
            return _one_key(key, content)
        keys = self.keys_apart(key)
        return keys if content is None else torch.cat([keys, content.mT.unsqueeze(-1)], dim=-1)

    def read(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Keys (B, 1 or H, S, r), values (B, H, S, d) and content bias (B, H, S) from entries."""
        heads = self.num_attention_heads
        values = repeated(self._read_values(value), heads)
        if not self._is_by_head(key):
            shared, content = self._without_content(key)
            return self.keys_by_head(shared), values, content
        content = None
        if self.content_bias is not None:
            key, content = key[..., :-1], key[..., -1]
        return repeated(key, heads), values, content

    def _is_by_head(self, key: Tensor) -> bool:
        """Whether this entry is by head."""
        return self.has_equal_heads and key.shape[1] == (self.spec.key_heads or self.num_attention_heads)

    def _read_values(self, value: Tensor) -> Tensor:
        """(B, groups, S, d) from an entry."""
        return value if value.shape[-1] == self.value_width else self._values_apart(value.squeeze(1))

    def _without_content(self, key: Tensor) -> tuple[Tensor, Tensor | None]:
        """Shared keys (B, S, ·) and content biases (B, H, S) from the entry of one key for all heads."""
        shared = key.squeeze(1)
        if self.content_bias is None:
            return shared, None
        shared, content = shared.split((self.spec.rank, self.num_attention_heads), -1)
        return shared, content.mT

    def attend_as_step(
        self, projected: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, position_bias: Tensor | None = None
    ) -> Tensor:
        """Attention of one token of each row, (B, 1, H·d).

        Args:
            projected: shared queries, (B, 1, R), with the offset of shared queries.
            key: an entry.
            value: an entry.
            mask: as in `attention_of_one_token`.
            position_bias: as in `attention_of_one_token`.
        """
        query, content = self.queries_of_one_token(projected), None
        if self._is_by_head(key):
            if self.content_bias is not None:
                query = functional.pad(query, (0, 1), value=1.0)  # (B, H, r + 1), which reads the content, too
        else:
            shared, content = self._without_content(key)
            key = self.keys_apart(shared) if self.has_equal_heads else shared.unsqueeze(1)
        return attention_of_one_token(query, key, self._read_values(value), content, mask, position_bias, self.scaling)


def own_cache(cache: Any) -> Any:
    """The part of a transformers cache that self-attention fills."""
    return cache.self_attention_cache if isinstance(cache, EncoderDecoderCache) else cache


def _one_key(key: Tensor, content: Tensor | None) -> Tensor:
    """An entry of one key for all heads, from shared keys (B, S, R) and content biases (B, S, H)."""
    return (key if content is None else torch.cat([key, content], dim=-1)).unsqueeze(1)


def _is_static(cache: Any, number: int) -> bool:
    """Whether a transformers cache has a tensor of a fixed size for this layer."""
    layers = () if cache is None else cache.layers
    return number < len(layers) and layers[number].is_compileable
