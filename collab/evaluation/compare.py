"""Two models on the same rows: whether they can be compared, how far their answers are apart, size and speed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedModel

from ..data.features import Batch, Feature, row_batches
from ..errors import ConfigurationError
from ..io.load import Checkpoint
from ..modeling.collab_model import CollaborativeMixin
from ..models.answers import Answer, answers_of
from ..models.inputs import on_device
from ..models.layers import count_bytes, count_parameters
from ..models.states import evaluating
from .timing import time_in_turn


def agreement(original: PreTrainedModel, converted: PreTrainedModel, batches: Iterable[Batch]) -> dict[str, Any] | None:
    """Runs both models on batches, one batch at a time, and compares their outputs.

    Args:
        original: a native model.
        converted: its conversion.
        batches: keyword arguments for both.

    Returns:
        None without batches; otherwise ``rows``, and for models with logits ``kl`` (mean Kullback-Leibler divergence
        from the original's distribution, nats; that of all labels of a row together where several may apply) and
        ``top1`` (how often both prefer the same class, or say the same of a label); for regressions
        ``absolute_difference`` (mean over all outputs); for the others ``token_cosine`` (mean cosine of hidden states)
        and ``embedding_cosine`` (of their means over a row's tokens). Padding does not count (`collab.models.answers`).
    """
    sums: dict[str, float] = {}
    counts: dict[str, int] = {}
    rows = 0

    def add(name: str, values: Tensor) -> None:
        sums[name] = sums.get(name, 0.0) + float(values.double().sum())
        counts[name] = counts.get(name, 0) + values.numel()

    with evaluating(original, converted), torch.no_grad():
        for batch in batches:
            moved = on_device(batch, original.device)
            rows += len(next(iter(moved.values())))
            mask = moved.get("attention_mask")
            # Both as the original's kind of answer, whatever became of the converted model's config.
            expected, actual = (answers_of(original, model(**moved), mask) for model in (original, converted))
            _compare(expected, actual, add)
    if not rows:
        return None
    return {"rows": rows, **{name: sums[name] / counts[name] for name in sums}}


def _compare(expected: list[Answer], actual: list[Answer], add: Any) -> None:
    for first, second in zip(expected, actual, strict=True):
        if first.uncertain:
            add("kl", first.of_seen(first.divergence(second)))
            add("top1", first.of_seen(first.same(second).float()))
        elif first.kind == "numbers":
            add("absolute_difference", (first.values - second.values).abs())
        elif first.name == "last_hidden_state":
            _compare_states(first, second, add)


def _compare_states(first: Answer, second: Answer, add: Any) -> None:
    ours, theirs = first.values, second.values  # (B, T, D)
    add("token_cosine", functional.cosine_similarity(first.of_seen(ours), first.of_seen(theirs), dim=-1))
    weight = ours.new_ones(ours.shape[:2]) if first.seen is None else first.seen.to(ours)
    sums = [(states * weight.unsqueeze(-1)).sum(1) for states in (ours, theirs)]  # (B, D)
    add("embedding_cosine", functional.cosine_similarity(sums[0], sums[1], dim=-1))


_ROWS = 32
_COMPARED = 1024
_TIMED = 256


def compare(model: Checkpoint, other: Checkpoint, features: Sequence[Feature], *, repeats: int = 3) -> dict[str, Any]:
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
        "parameters": _both(first, second, count_parameters),
        "bytes": _both(first, second, lambda model: count_bytes(model.parameters())),
        "tokens_per_second": speeds(first, second, timed, repeats),
    }


def _some(features: Sequence[Feature], count: int) -> Sequence[Feature]:
    """Rows evenly from all, at most so many."""
    return features if len(features) <= count else [features[row * len(features) // count] for row in range(count)]


def batches_of(loaded: Checkpoint, features: Sequence[Feature]) -> list[Batch]:
    """Rows of like length together, in batches of 32, on the model's device."""
    batches = row_batches(loaded.model, loaded.processor, features, _ROWS)
    return [on_device(batch, loaded.model.device) for batch in batches]


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


def check_comparable(model: PreTrainedModel, other: PreTrainedModel) -> None:
    """Makes sure that two models have the same states after every layer, and the same kind of answers.

    Raises:
        ConfigurationError: saying what differs.
    """
    for name, what in (
        ("hidden_size", "hidden states of width"),
        ("num_hidden_layers", "layers:"),
        ("vocab_size", "a vocabulary of"),
        ("num_labels", "labels:"),
    ):
        mine, theirs = getattr(model.config, name, None), getattr(other.config, name, None)
        if mine != theirs:
            raise ConfigurationError(
                f"The models do not go together: the original has {what} {theirs}, this one {mine}. Name the one that "
                "this one was made from."
            )
    mine, theirs = (_native_name(one) for one in (model, other))
    if mine != theirs:
        raise ConfigurationError(
            f"The models do not go together: the original is a {theirs}, this one was a {mine}. Name the model that it "
            "was made from."
        )


def check_tokenizers(tokenizer: Any, other: Any) -> None:
    """Makes sure that two models read text alike; ConfigurationError if not."""
    if hasattr(tokenizer, "get_vocab") and hasattr(other, "get_vocab") and tokenizer.get_vocab() != other.get_vocab():
        raise ConfigurationError("The models have different tokenizers, so they cannot be compared.")


def _native_name(model: PreTrainedModel) -> str:
    return (model.native_class() if isinstance(model, CollaborativeMixin) else type(model)).__name__
