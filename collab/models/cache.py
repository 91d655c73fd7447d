"""The size of a decoder's cache of keys and values, measured on the cache."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.cache_utils import EncoderDecoderCache

from .families import collaborative_layers
from .inputs import longest_input, random_inputs
from .layers import count_bytes
from .states import evaluating


@dataclass(frozen=True)
class CacheBytes:
    """Bytes of a cache for each token, all layers together.

    Attributes:
        keys: of the keys, for a token of the decoder; the content biases of a converted model are among them.
        values: of the values, for a token of the decoder.
        dtype: dtype of all.
        cross_keys: of the keys of cross-attention, for a token of the encoder; 0 without cross-attention.
        cross_values: of the values of cross-attention, for a token of the encoder; 0 without cross-attention.
        held: bytes that are held at most for a row as long as the model takes, if the cache forgets tokens.
        longest: number of tokens in that row.
    """

    keys: int
    values: int
    dtype: str
    cross_keys: int = 0
    cross_values: int = 0
    held: int | None = None
    longest: int | None = None


@torch.no_grad()
def cache_bytes(model: PreTrainedModel) -> CacheBytes | None:
    """Measures the cache that a model fills from one row of one token; None if it has no cache, as encoders.

    Args:
        model: original or converted; on the ``meta`` device too.
    """
    base: Any = model.base_model
    if "use_cache" not in inspect.signature(base.forward).parameters:
        return None
    inputs = random_inputs(base, 1, 1)
    inputs.pop("attention_mask", None)  # whose values cannot be read on the meta device
    if "decoder_attention_mask" in inputs:  # some decoders make one where there is none, so one of scores is given
        inputs["decoder_attention_mask"] = torch.zeros(1, 1, 1, 1, dtype=base.dtype, device=base.device)
    elif "input_ids" in inputs:  # which some decoders compare with the padding token
        inputs["inputs_embeds"] = base.get_input_embeddings()(inputs.pop("input_ids"))
    with evaluating(base):
        cache = getattr(base(**inputs, use_cache=True), "past_key_values", None)
    if cache is None:
        return None
    if not isinstance(cache, EncoderDecoderCache):
        return CacheBytes(*_bytes(cache), _dtype(cache), *(0, 0), *_held(base, cache))
    own, cross = cache.self_attention_cache, cache.cross_attention_cache
    return CacheBytes(*_bytes(own), _dtype(own), *_bytes(cross), *_held(base, own))


def _held(model: PreTrainedModel, cache: Any) -> tuple[int, int] | tuple[None, None]:
    """Bytes that are held at most for the longest row, and its tokens, if layers of a decoder forget some."""
    layers = [layer for layer in collaborative_layers(model).values() if layer.kind == "decoder"]
    if all(layer.spec.long is None for layer in layers):
        return None, None
    longest = longest_input(model)
    held = [longest] * len(cache.layers)
    for layer in layers:
        if layer.spec.long is not None:
            held[layer.layer_idx] = layer.spec.long.held(longest)
    # One token is in the cache now.
    each = [count_bytes([layer.keys, layer.values]) for layer in cache.layers]
    return sum(size * tokens for size, tokens in zip(each, held, strict=True)), longest


def _bytes(cache: Any) -> tuple[int, int]:
    """Bytes of keys and of values for each token. An encoder of recordings gives several, whatever the decoder has."""
    keys, values = (
        sum(count_bytes([held := getattr(layer, name)]) // held.shape[-2] for layer in cache.layers)
        for name in ("keys", "values")
    )
    return keys, values


def _dtype(cache: Any) -> str:
    return str(cache.layers[0].keys.dtype).removeprefix("torch.")
