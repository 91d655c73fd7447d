"""Rows without labels of one or several sources, some of them held out."""

from __future__ import annotations

import itertools
import logging
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from ..models.inputs import has_decoder
from ..models.weights import bytes_of
from ..steps.step import DataSummary
from .batches import Feature, length_of
from .features import with_own_targets
from .prepare import Unlabelled, features_of
from .source import Mixture
from .targets import BlankWriter, Writer

logger = logging.getLogger(__name__)

_REPEATS = 4
_FAR = 1.5


@dataclass(frozen=True)
class Rows:
    """Encoded rows of one or several sources.

    Attributes:
        train: features of the rows to learn from, in random order if there are several sources.
        held_out: features of the rows to judge by, by source.
        summary: the sources, for reports.
    """

    train: list[Feature]
    held_out: dict[str, list[Feature]]
    summary: DataSummary

    @property
    def all_held_out(self) -> list[Feature]:
        """The rows to judge by, of all sources in turn, so that the first ones are of every source."""
        in_turn = zip_longest(*self.held_out.values())
        return [feature for features in in_turn for feature in features if feature is not None]


def rows_of(
    model: PreTrainedModel,
    processor: Any | None,
    data: Unlabelled,
    *,
    samples: int,
    held_out: Callable[[int], int],
    repeats: bool = False,
    max_length: int | None = None,
    seed: int = 0,
    writer: Writer | None = None,
) -> Rows:
    """Encodes rows without labels, some of them to judge by.

    The tokens of a mixture are divided among its sources by weight, as far as they have so many.

    Args:
        model: the model to run on them.
        processor: as in `features_of`.
        data: the rows.
        samples: rows at most, of all sources together.
        held_out: given a number of rows, says which to hold out: one in so many.
        repeats: whether a source of a mixture that has too few rows to learn from gives them up to four times.
        max_length: as in `features_of`.
        seed: seed of the sample, of random words and of the order.
        writer: as in `features_of`.

    Raises:
        DataError: as `features_of`.
    """
    several = data if isinstance(data, Mixture) else Mixture({"": data})
    encoded: dict[str, list[Feature]] = {}
    summaries: dict[str, DataSummary] = {}
    later = len(several.sources) > 1
    writes = BlankWriter(model) if later else writer
    for name, source in several.sources.items():
        encoded[name], summaries[name] = features_of(
            model, processor, source, samples=samples, max_length=max_length, seed=seed, writer=writes
        )
        if name:
            summaries[name] |= {"source": name}
    if not later:
        ((name, features),) = encoded.items()
        train, held = _hold_out_distinct(features, held_out)
        summary = summaries[name]
        return Rows(train, {summary["source"]: held}, summary | {"held_out": len(held)})
    _give_types(encoded.values())
    times = _REPEATS if repeats else 1
    counts = _shares(encoded, several, samples, times)
    _warn_of_weights(encoded, several, counts)
    for name in encoded:
        if several.weight(name) != 1:
            summaries[name]["weight"] = several.weight(name)
    rows = _mixed(encoded, summaries, counts, held_out, times, random.Random(seed))
    if has_decoder(model):
        _give_targets(model, processor, rows, writer)
    return rows


def _mixed(
    encoded: Mapping[str, list[Feature]],
    summaries: Mapping[str, DataSummary],
    counts: Mapping[str, int],
    held_out: Callable[[int], int],
    times: int,
    generator: random.Random,
) -> Rows:
    """So many rows of each of several sources, those to learn from in random order and each so many times at most."""
    rows = Rows([], {}, {"source": ", ".join(encoded), "sources": []})
    chosen: dict[str, list[Feature]] = {}
    train: dict[str, list[Feature]] = {}
    for name, features in encoded.items():
        generator.shuffle(features)
        chosen[name] = features[: max(2, counts[name])]
        train[name], rows.held_out[name] = _hold_out_distinct(chosen[name], held_out)
    judged_by = {_content(feature) for held in rows.held_out.values() for feature in held}
    for name, features in chosen.items():
        others = [feature for feature in train[name] if _content(feature) not in judged_by]
        own_train = others or train[name]  # nothing else is there
        own = summaries[name] | {"rows": len(features), "held_out": len(rows.held_out[name])}
        given = min(max(len(own_train), counts[name] - own["held_out"]), times * len(own_train))
        rows.train.extend(own_train[number % len(own_train)] for number in range(given))
        rows.summary["sources"].append(own | {"tokens": sum(map(length_of, features))})
    generator.shuffle(rows.train)
    rows.summary["rows"] = sum(own["rows"] for own in rows.summary["sources"])
    rows.summary["held_out"] = sum(own["held_out"] for own in rows.summary["sources"])
    return rows


def _give_targets(model: PreTrainedModel, processor: Any | None, rows: Rows, writer: Writer | None) -> None:
    """Adds to rows of sources alone what the model's decoder reads; the same row may be there several times."""
    every = {id(feature): feature for feature in (*rows.train, *rows.all_held_out)}
    without = [feature for feature in every.values() if "decoder_input_ids" not in feature]
    if without:
        for feature, whole in zip(without, with_own_targets(model, processor, without, writer), strict=True):
            feature.update(whole)


def _give_types(encoded: Iterable[list[Feature]]) -> None:
    """Adds to random words the types of tokens that a tokenizer gives for text, so that one batch can hold both."""
    every = [feature for features in encoded for feature in features]
    if any("token_type_ids" in feature for feature in every):
        for feature in every:
            feature.setdefault("token_type_ids", [0] * len(feature["input_ids"]))


def _shares(encoded: Mapping[str, Sequence[Feature]], mixture: Mixture, samples: int, repeats: int) -> dict[str, int]:
    """By source, the number of rows that gives it its share of the tokens; what one source lacks, the others give.

    Rows are not repeated beyond what gives the sources their shares once every row is there.
    """
    wanted = {  # rows for each token of weight 1
        name: mixture.weight(name) * len(features) / sum(map(length_of, features)) for name, features in encoded.items()
    }
    every = max(len(features) / wanted[name] for name, features in encoded.items())  # tokens of weight 1
    full = {
        name: min(len(features) * repeats, max(len(features), round(wanted[name] * every)))
        for name, features in encoded.items()
    }
    limited: dict[str, int] = {}
    while len(limited) < len(encoded):
        open_ = {name: rate for name, rate in wanted.items() if name not in limited}
        tokens = (samples - sum(limited.values())) / sum(open_.values())
        short = {name: full[name] for name, rate in open_.items() if rate * tokens >= full[name]}
        if not short:
            return limited | {name: int(rate * tokens) for name, rate in open_.items()}
        limited |= short
    return limited


def _warn_of_weights(encoded: Mapping[str, Sequence[Feature]], mixture: Mixture, counts: Mapping[str, int]) -> None:
    """Warns if the tokens of sources are far from the weights that were asked for."""
    if all(mixture.weight(name) == 1 for name in encoded):
        return
    tokens = {
        name: max(2, counts[name]) * sum(map(length_of, features)) / len(features) for name, features in encoded.items()
    }
    by_weight = [tokens[name] / mixture.weight(name) for name in encoded]
    if max(by_weight) > _FAR * min(by_weight):
        whole = sum(tokens.values())
        shares = ", ".join(f"{name} gives {100 * own / whole:.0f} %" for name, own in tokens.items())
        logger.warning(
            "The weights of the sources could not be kept with the rows that they have: of the tokens, %s.", shares
        )


def _hold_out_distinct(features: list[Feature], held_out: Callable[[int], int]) -> tuple[list[Feature], list[Feature]]:
    """Rows to learn from, and rows to judge by, one in so many of those that differ, none of which is among the first.

    Args:
        features: the rows, of which several may be equal.
        held_out: see `rows_of`.
    """
    alike: dict[Any, list[int]] = {}
    for number, feature in enumerate(features):
        alike.setdefault(_content(feature), []).append(number)
    if len(alike) < 2:
        return hold_out(features, held_out(len(features)))
    learned, judged = hold_out([*alike.values()], held_out(len(alike)))
    train = [features[number] for number in sorted(itertools.chain.from_iterable(learned))]
    return train, [features[first] for first, *_ in judged]


def _content(feature: Feature) -> tuple[Any, ...]:
    """What is equal for rows that are."""
    return tuple(bytes_of(value) if isinstance(value, Tensor) else repr(value) for value in feature.values())


def hold_out(rows: list[Any], period: int) -> tuple[list[Any], list[Any]]:
    """Rows to learn from, and every `period`-th row, held out."""
    period = min(period, len(rows))
    return [row for number, row in enumerate(rows, 1) if number % period], rows[period - 1 :: period]
