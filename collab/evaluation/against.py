"""A model beside another on the same rows: answers, hidden states, size and speed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.nn import functional
from transformers import PreTrainedModel

from ..data.features import Batch, Feature, row_batches
from ..io.load import Loaded
from .agreement import agreement
from .timing import time_in_turn

_ROWS = 32
_COMPARED = 1024
_TIMED = 256


def compare(model: Loaded, other: Loaded, features: Sequence[Feature], *, repeats: int = 3) -> dict[str, Any]:
    """Runs two models over the same rows.

    Args:
        model: the one in question.
        other: the one that it is held against, usually the original; `check_comparable` has passed them.
        features: without labels; of more than a thousand, that many evenly from all, and a quarter of them for speed.
        repeats: how often each runs over all rows for its speed, in turn with the other.

    Returns:
        ``agreement`` (see there), ``hidden_cosine`` (mean over the tokens, for the state after every layer),
        ``parameters`` and ``bytes`` of both, and ``tokens_per_second`` of both with the ratio of their medians and the
        least and largest ratio of a round.
    """
    first, second = model.model, other.model
    batches = batches_of(model, _some(features, _COMPARED))
    timed = batches_of(model, _some(features, _TIMED))
    return {
        "model": other.source.name,
        "agreement": agreement(second, first, batches),
        "hidden_cosine": _hidden_cosine(first, second, batches),
        "parameters": _both(first, second, lambda one: sum(p.numel() for p in one.parameters())),
        "bytes": _both(first, second, lambda one: sum(p.numel() * p.element_size() for p in one.parameters())),
        "tokens_per_second": speeds(first, second, timed, repeats),
    }


def _some(features: Sequence[Feature], count: int) -> Sequence[Feature]:
    """Rows evenly from all, at most so many."""
    return features if len(features) <= count else [features[row * len(features) // count] for row in range(count)]


def batches_of(loaded: Loaded, features: Sequence[Feature]) -> list[Batch]:
    """Rows of like length together, in batches of 32, on the model's device."""
    batches = row_batches(loaded.model, loaded.processor, features, _ROWS)
    return [{name: value.to(loaded.model.device) for name, value in batch.items()} for batch in batches]


def speeds(first: PreTrainedModel, second: PreTrainedModel, batches: Sequence[Batch], repeats: int) -> dict[str, float]:
    """Tokens per second of two models, measured in turn so that what else the machine does hits both."""
    tokens = sum(int(batch["attention_mask"].sum()) if "attention_mask" in batch else len(batch) for batch in batches)
    runs = [(model, batches) for model in (first, second)]
    time_in_turn([(model, batches[:1]) for model in (first, second)])  # warm
    rates: list[list[float]] = [[], []]
    for number in range(repeats):
        for rate, seconds in zip(rates, time_in_turn(runs, backwards=number % 2 == 1), strict=True):
            rate.append(tokens / seconds)
    ratios = [one / other for one, other in zip(*rates, strict=True)]
    return {
        "model": float(np.median(rates[0])),
        "against": float(np.median(rates[1])),
        "ratio": float(np.median(ratios)),
        "ratio_low": min(ratios),
        "ratio_high": max(ratios),
    }


def _hidden_cosine(first: PreTrainedModel, second: PreTrainedModel, batches: Sequence[Batch]) -> list[float]:
    sums: np.ndarray | float = 0.0
    count = 0
    with torch.no_grad():
        for batch in batches:
            states = [one(**batch, output_hidden_states=True).hidden_states[1:] for one in (first, second)]
            mask = batch.get("attention_mask")
            seen = (
                torch.ones_like(states[0][0][..., 0], dtype=torch.bool) if mask is None else mask.flatten(0, -2).bool()
            )
            cosines = [
                functional.cosine_similarity(one[seen].float(), other[seen].float(), dim=-1).sum().item()
                for one, other in zip(*states, strict=True)
            ]
            sums = sums + np.array(cosines)
            count += int(seen.sum())
    return [float(one) for one in np.atleast_1d(sums / max(count, 1))]


def _both(first: PreTrainedModel, second: PreTrainedModel, measure: Any) -> dict[str, int]:
    return {"model": measure(first), "against": measure(second)}
