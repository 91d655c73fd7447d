"""Compares two models on the same rows: agreement of their outputs, size and speed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel

from ..data.batches import Batch, Feature, evenly_spaced, row_batches
from ..errors import ConfigurationError
from ..graphs.served import session_of
from ..io.checkpoint import Checkpoint
from ..modeling.collab_model import CollaborativeMixin
from ..models.inputs import on_device
from ..models.layers import count_bytes, count_parameters, dropped_layers
from ..models.outputs import Output, matched_states, outputs_of
from ..models.padding import output_mask
from ..models.positions import with_positions_of
from ..models.sharded import is_sharded
from ..models.states import evaluating
from ..processes import dealt, gathered
from ..steps.step import Json
from .timing import rounds_in_turn, time_in_turn


def agreement(
    original: PreTrainedModel, converted: PreTrainedModel, batches: Iterable[Batch]
) -> dict[str, float] | None:
    """Runs both models on batches, one batch at a time, and compares their outputs.

    Args:
        original: a native model.
        converted: its conversion.
        batches: keyword arguments for both.

    Returns:
        None without batches; otherwise ``rows``, and for models with logits ``kl`` (mean Kullback-Leibler divergence
        from the original's distribution, nats; with several labels, summed over the labels of a row) and ``top1``
        (fraction of outputs where both prefer the same class, or agree on a label); for regressions
        ``absolute_difference`` (mean over all outputs); for other models ``token_cosine`` (mean cosine of hidden
        states, or of whole images) and ``embedding_cosine`` (mean cosine of their means over a row's tokens). Padding
        is ignored (`collab.models.outputs`).
    """
    return agreement_by_source(original, converted, batches)[0]


def agreement_by_source(
    original: PreTrainedModel, converted: nn.Module, batches: Iterable[Batch], sources: Sequence[str] = ()
) -> tuple[dict[str, float] | None, dict[str, dict[str, float]]]:
    """The agreement on all batches, and on those of each source. Several processes, which all call this, divide them.

    Args:
        original: a native model.
        converted: its conversion, or a graph of it.
        batches: keyword arguments for both.
        sources: the source of each batch; none if all have the same.

    Returns:
        See `agreement`: for all batches, and by source; without `sources`, an empty dictionary.
    """
    own: defaultdict[str | None, _Sums] = defaultdict(_Sums)
    with evaluating(original, converted), torch.no_grad():
        evenly = is_sharded(original)
        for _, (batch, source), counts in dealt(list(zip_longest(batches, sources)), evenly=evenly):
            moved = on_device(batch, original)
            mask = output_mask(moved)
            # Both of the original's kind, because the converted model's config may have been changed.
            outputs = [outputs_of(original, model(**moved), mask) for model in (original, converted)]
            if counts:
                own[source].rows += len(next(iter(moved.values())))
                own[source].add(*outputs)
    whole, by_source = _Sums(), {source: _Sums() for source in sources}
    for part in gathered(dict(own)):
        for source, sums in part.items():
            whole.merge(sums)
            if source is not None:
                by_source[source].merge(sums)
    return whole.agreement, {source: sums.agreement or {} for source, sums in by_source.items()}


def outputs_on(original: PreTrainedModel, model: PreTrainedModel, batches: Iterable[Batch]) -> list[list[Output]]:
    """A model's outputs on batches, as the original's kinds of outputs, for `compare_outputs`."""
    outputs = []
    with evaluating(model), torch.no_grad():
        for batch in batches:
            moved = on_device(batch, model)
            outputs.append(outputs_of(original, model(**moved), output_mask(moved)))
    return outputs


def compare_outputs(expected: Iterable[list[Output]], actual: Iterable[list[Output]]) -> dict[str, float]:
    """The agreement of outputs with the original's, batch by batch; as in `agreement`, without ``rows``."""
    sums = _Sums()
    for first, second in zip(expected, actual, strict=True):
        sums.add(first, second)
    return sums.means


class _Sums:
    """Sums of how far outputs agree, by the names in `agreement`."""

    def __init__(self) -> None:
        self.rows = 0
        self._sums: dict[str, float] = {}
        self._counts: dict[str, int] = {}

    def add(self, expected: list[Output], actual: list[Output]) -> None:
        """Adds the outputs for one batch."""
        _add_outputs(expected, actual, self._add)

    def merge(self, other: _Sums) -> None:
        """Adds other sums."""
        self.rows += other.rows
        for name, total in other._sums.items():
            self._sums[name] = self._sums.get(name, 0.0) + total
            self._counts[name] = self._counts.get(name, 0) + other._counts[name]

    @property
    def means(self) -> dict[str, float]:
        """Means over rows, tokens or outputs."""
        return {name: total / self._counts[name] for name, total in self._sums.items()}

    @property
    def agreement(self) -> dict[str, float] | None:
        """The means with the number of rows; None without rows."""
        return {"rows": self.rows, **self.means} if self.rows else None

    def _add(self, name: str, values: Tensor) -> None:
        self._sums[name] = self._sums.get(name, 0.0) + float(values.double().sum())
        self._counts[name] = self._counts.get(name, 0) + values.numel()


def _add_outputs(expected: list[Output], actual: list[Output], add: Any) -> None:
    for first, second in zip(expected, actual, strict=True):
        if first.uncertain:
            add("kl", first.of_seen(first.divergence(second)))
            add("top1", first.of_seen(first.same(second).float()))
        elif first.kind == "numbers":
            add("absolute_difference", first.of_seen((first.values - second.values).abs()))
        else:
            _add_states(first, second, add)


def _add_states(first: Output, second: Output, add: Any) -> None:
    by_token = first.values.ndim == 3
    states = [each.values if by_token else each.values.flatten(1).unsqueeze(1) for each in (first, second)]  # (B, T, D)
    seen = first.seen if by_token else None
    left, right = states if seen is None else (each[seen] for each in states)
    add("token_cosine", functional.cosine_similarity(left, right, dim=-1))
    weight = states[0].new_ones(states[0].shape[:2]) if seen is None else seen.to(states[0])
    sums = [(hidden * weight.unsqueeze(-1)).sum(1) for hidden in states]  # (B, D)
    add("embedding_cosine", functional.cosine_similarity(sums[0], sums[1], dim=-1))


_ROWS = 32
_COMPARED = 1024
_TIMED = 256


def compare(
    model: Checkpoint,
    against: Checkpoint,
    features: Sequence[Feature],
    others: Sequence[Feature] | None = None,
    *,
    rounds: int = 3,
) -> Json:
    """Compares two models on the same rows.

    Args:
        model: the model.
        against: the model to compare it with, usually the original.
        features: rows without labels; at most 1024 are compared and 256 timed, evenly spaced.
        others: the same rows as `against` reads them; None for two models that `are_alike`. Without that only size and
            speed are compared.
        rounds: rounds of the measurement of speed, in which the models alternate.

    Returns:
        ``agreement`` (see there; None for models that are not alike), ``hidden_cosine`` (mean over the tokens, for the
        hidden states after every layer, an encoder's before its decoder's; empty for graphs), ``parameters`` and
        ``bytes`` of both (of a graph, its files), and ``tokens_per_second`` of both, medians of the rounds, with their
        ratio and the lowest and highest of a round; ``rows_per_second`` instead for models that are not alike.
    """
    first, second = model.model, against.model
    sizes = {"parameters": _both(first, second, count_parameters), "bytes": _both(first, second, _bytes)}
    timed = batches_of(model, evenly_spaced(features, _TIMED))
    if others is not None:
        runs = (first, timed), (second, batches_of(against, evenly_spaced(others, _TIMED)))
        speed = _speeds(runs, sum(len(next(iter(batch.values()))) for batch in timed), rounds)
        return {"model": against.name, "agreement": None, "hidden_cosine": [], **sizes, "rows_per_second": speed}
    if not (session_of(first) or session_of(second)):
        second = with_positions_of(second, first)  # of a lengthened model, the rows may be longer than the original's
    batches = batches_of(model, evenly_spaced(features, _COMPARED))
    return {
        "model": against.name,
        "agreement": agreement(second, first, batches),
        "hidden_cosine": [] if session_of(first) or session_of(second) else _hidden_cosine(first, second, batches),
        **sizes,
        "tokens_per_second": _speeds(((first, timed), (second, timed)), sum(map(_tokens, timed)), rounds),
    }


def batches_of(loaded: Checkpoint, features: Sequence[Feature]) -> list[Batch]:
    """Batches of 32 rows of similar length, on the model's device."""
    batches = row_batches(loaded.model, loaded.processor, features, _ROWS)
    return [on_device(batch, loaded.model) for batch in batches]


def _speeds(runs: Sequence[tuple[PreTrainedModel, Sequence[Batch]]], amount: int, rounds: int) -> dict[str, float]:
    """An amount per second of two models, which alternate so that other load on the machine affects both."""
    with evaluating(*(model for model, _ in runs)):
        time_in_turn([(model, batches[:1]) for model, batches in runs])  # warm
        seconds = rounds_in_turn(runs, rounds, warm=0)
    rates = [[amount / each for each in times] for times in zip(*seconds, strict=True)]
    ratios = [rate / reference for rate, reference in zip(*rates, strict=True)]
    medians = [float(np.median(rate)) for rate in rates]
    return {
        "model": medians[0],
        "against": medians[1],
        "ratio": medians[0] / medians[1],
        "ratio_low": min(ratios),
        "ratio_high": max(ratios),
    }


def _tokens(batch: Batch) -> int:
    """The number of tokens in a batch that are not padding; of images and recordings their own number."""
    if "attention_mask" in batch:
        return int(batch["attention_mask"].sum())
    first = next(iter(batch.values()))
    return first.numel() if "input_ids" in batch else len(first)


def _hidden_cosine(first: PreTrainedModel, second: PreTrainedModel, batches: Sequence[Batch]) -> list[float]:
    """Mean cosine of a model's hidden states with its original's, layer by layer."""
    sums: np.ndarray | float = 0.0
    totals: np.ndarray | int = 0
    with evaluating(first, second), torch.no_grad():
        for batch in batches:
            ours, theirs = (model(**batch, output_hidden_states=True) for model in (first, second))
            pairs = matched_states(ours, theirs, batch, dropped_layers(first))
            cosines = [functional.cosine_similarity(left.float(), right.float(), dim=-1) for left, right in pairs]
            sums = sums + np.array([cosine.sum().item() for cosine in cosines])
            totals = totals + np.array([cosine.numel() for cosine in cosines])
    return [float(cosine) for cosine in np.atleast_1d(sums / np.maximum(totals, 1))]


def _bytes(model: PreTrainedModel) -> int:
    session = session_of(model)
    return count_bytes(model.parameters()) if session is None else session.bytes


def _both(first: PreTrainedModel, second: PreTrainedModel, measure: Any) -> dict[str, int]:
    return {"model": measure(first), "against": measure(second)}


def are_alike(model: Checkpoint, other: Checkpoint) -> bool:
    """Whether two models can be compared layer by layer, and read text by the same tokenizer."""
    try:
        check_comparable(model.model, other.model)
        check_tokenizers(model.processor, other.processor)
    except ConfigurationError:
        return False
    return True


def check_comparable(model: PreTrainedModel, original: PreTrainedModel) -> None:
    """Checks that two models can be compared layer by layer.

    Raises:
        ConfigurationError: if they differ in width, layers, vocabulary, labels or class.
    """
    dropped = dropped_layers(model)
    for name, what in (
        ("hidden_size", "hidden states of width"),
        ("num_hidden_layers", "layers:"),
        ("decoder_layers", "layers of the decoder:"),
        ("num_decoder_layers", "layers of the decoder:"),
        ("vocab_size", "a vocabulary of"),
        ("num_labels", "labels:"),
    ):
        actual, expected = getattr(model.config, name, None), getattr(original.config, name, None)
        if what.startswith("layers") and actual is not None:
            actual += len(dropped.layers if name == "num_hidden_layers" else dropped.decoder)
        if actual != expected:
            left_out = " Where tokens were left out (--keep-tokens), there is none." if name == "vocab_size" else ""
            raise ConfigurationError(
                f"The models cannot be compared: the original has {what} {expected}, this one {actual}. Name the model "
                f"that this one was made from.{left_out}"
            )
    actual, expected = _native_name(model), _native_name(original)
    if actual != expected:
        raise ConfigurationError(
            f"The models cannot be compared: the original is a {expected}, this one was a {actual}. Name the model "
            "that this one was made from."
        )


def check_tokenizers(tokenizer: Any, original: Any) -> None:
    """Raises a ConfigurationError if two models have different vocabularies."""
    vocabularies = [part.get_vocab() for part in (tokenizer, original) if hasattr(part, "get_vocab")]
    if len(vocabularies) == 2 and vocabularies[0] != vocabularies[1]:
        raise ConfigurationError("The models have different tokenizers, so they cannot be compared.")


def _native_name(model: PreTrainedModel) -> str:
    return (model.native_class() if isinstance(model, CollaborativeMixin) else type(model)).__name__
