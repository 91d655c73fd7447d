"""Batches for the calibration pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedModel

from .features import Batch, Feature, collate, length_of


def tokens_in_batch(model: PreTrainedModel) -> int:
    """Tokens in a batch at most, unless one row alone has more.

    The graph of a token takes some 20 D numbers in every layer and the moments of a layer 4 D² of twice the size, so
    with D/5 tokens the pass takes less memory than the moments do.
    """
    return max(64, model.config.hidden_size // 5)


def batched(model: PreTrainedModel, processor: Any | None, features: Sequence[Feature]) -> list[Batch]:
    """Padded batches of rows of like length; images one at a time, because each is some hundred tokens.

    Args:
        model: that will be run on them.
        processor: its tokenizer, or image processor.
        features: of the rows.
    """
    lengths = [length_of(feature) for feature in features]
    images = model.main_input_name == "pixel_values"
    order = sorted(range(len(features)), key=lambda row: (lengths[row], row))
    batches, start, tokens = [], 0, tokens_in_batch(model)
    while start < len(order):
        stop = start + 1
        while not images and stop < len(order) and (stop + 1 - start) * lengths[order[stop]] <= tokens:
            stop += 1
        batches.append(collate(model, processor, [features[row] for row in order[start:stop]]))
        start = stop
    return batches
