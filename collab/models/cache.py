"""The size of a decoder's cache of keys and values, measured on the cache."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.cache_utils import EncoderDecoderCache

from .inputs import random_inputs
from .layers import count_bytes
from .states import evaluating


@dataclass(frozen=True)
class CacheBytes:
    """What a cache holds for each token, in bytes, all layers together.

    With cross-attention, it is for a token of each of the two sequences.

    Attributes:
        keys: of the keys; the content biases of a converted model are among them.
        values: of the values.
        dtype: dtype of both.
    """

    keys: int
    values: int
    dtype: str


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
    both = isinstance(cache, EncoderDecoderCache)
    parts = (cache.self_attention_cache, cache.cross_attention_cache) if both else (cache,)
    layers = [layer for part in parts for layer in part.layers]
    keys, values = (
        # An encoder of recordings gives several tokens, whatever the decoder has.
        sum(count_bytes([held := getattr(layer, name)]) // held.shape[-2] for layer in layers)
        for name in ("keys", "values")
    )
    return CacheBytes(keys, values, str(layers[0].keys.dtype).removeprefix("torch."))
