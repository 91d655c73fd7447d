"""A decoder's cache as tensors by name, which a graph takes and gives, and back.

The names are those of optimum: ``past_key_values.0.key`` goes in and ``present.0.key`` comes out, of an encoder–decoder
``past_key_values.0.decoder.key`` and ``past_key_values.0.encoder.key``, the latter of cross-attention. A converted
layer's keys are (B, 1, S, R), one for all heads, or R + H with content biases; in the concat form with heads of equal
widths they are by head, as those of a native layer and as all values, (B, H, S, d).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, EncoderDecoderCache
from transformers.cache_utils import Cache, DynamicLayer

PAST = "past_key_values."
"""Begins the names of a graph's inputs that are its cache."""
PRESENT = "present."
"""Begins the names of a graph's outputs that are its cache."""
CROSS = ".encoder."
"""Is in the names of keys and values of cross-attention."""

CACHE_AXES = ("batch", None, "past", None)
"""Names of the axes of a cache's tensor that may be of any size."""

_OWN, _CROSS, _ONLY = ".decoder.", CROSS, "."


class WrittenCache(EncoderDecoderCache):
    """The cache of an encoder–decoder's graph. All beams of a row read the same keys of cross-attention."""

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Reorders what the decoder wrote for beam search."""
        self.self_attention_cache.reorder_cache(beam_idx)  # type: ignore[arg-type]


def new_cache(both: bool) -> Cache:
    """An empty cache that holds all tokens, even where attention reaches only a window of them.

    Args:
        both: whether there is cross-attention.
    """
    return WrittenCache(DynamicCache(), DynamicCache()) if both else DynamicCache()


def tensors_of(cache: Cache) -> dict[str, Tensor]:
    """The keys and values of a cache by name, without what its names begin with."""
    parts: dict[str, Any] = {_ONLY: cache}
    if isinstance(cache, EncoderDecoderCache):
        parts = {_OWN: cache.self_attention_cache, _CROSS: cache.cross_attention_cache}
    return {
        f"{number}{part}{role}": getattr(layer, f"{role}s")
        for part, layers in parts.items()
        for number, layer in enumerate(layers.layers)
        if layer.is_initialized  # a layer without heads holds nothing of another sequence
        for role in ("key", "value")
    }


def cache_of(tensors: Mapping[str, Tensor]) -> Cache:
    """The cache that holds tensors, by names as from `tensors_of`."""
    if not any(_OWN in name or _CROSS in name for name in tensors):
        return _layers(tensors, _ONLY)
    return WrittenCache(_layers(tensors, _OWN), _layers(tensors, _CROSS))


def _layers(tensors: Mapping[str, Tensor], part: str) -> DynamicCache:
    cache: Any = DynamicCache()
    for name, key in tensors.items():
        number, separator, role = name.partition(part)
        if not separator or role != "key":
            continue
        while len(cache.layers) <= int(number):
            cache.layers.append(DynamicLayer())
        layer = cache.layers[int(number)]
        layer.dtype, layer.device = key.dtype, key.device
        layer.keys, layer.values, layer.is_initialized = key, tensors[f"{number}{part}value"], True
    return cache


def empty(shape: tuple[int | None, ...], batch: int) -> Tensor:
    """A cache's tensor of no tokens, from its shape in a graph, None where it is dynamic."""
    sizes = [batch, *shape[1:]]
    return torch.zeros([0 if size is None else size for size in sizes])
