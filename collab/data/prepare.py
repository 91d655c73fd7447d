"""Features from any kind of data."""

from __future__ import annotations

import itertools
import logging
import os
import random
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from ..errors import DataError
from ..models.inputs import has_decoder, input_kind, longest_text, predicts_masked
from ..models.weights import bytes_of
from ..steps.step import DataSummary
from .encoding import MASKED, masked
from .features import (
    VIDEOS,
    Batch,
    Feature,
    audio_features,
    collate,
    image_features,
    length_of,
    row_features,
    synthetic_features,
    with_own_targets,
    without_labels,
)
from .rows import read_rows, sampled
from .source import DataSource, Mixture, NamedSource
from .targets import BlankWriter, Writer

logger = logging.getLogger(__name__)

Unlabelled = NamedSource | Mixture | Iterable[Any]
"""A source, random words (``"synthetic"``), a mixture of several, or strings, pairs of strings, images or recordings.

Of more rows than are asked for, a random sample is used; of an iterator, which may have no end, the first ones.

For an encoder-decoder, pairs are sources with their targets; for sources alone it writes them itself, greedily."""

_UNKNOWN = 0.2
_REPEATS = 4
_FAR = 1.5
_TOGETHER = 16


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


def features_of(
    model: PreTrainedModel,
    processor: Any | None,
    data: Unlabelled,
    *,
    samples: int,
    max_length: int | None = None,
    seed: int = 0,
    writer: Writer | None = None,
) -> tuple[list[Feature], DataSummary]:
    """Encodes rows without labels for a model.

    A masked language model repeats the tokens that it sees, and what it predicts of others is what counts: 15 % of the
    tokens are masked, the same ones for the same seed.

    Args:
        model: the model to run on them.
        processor: its tokenizer or image processor. Text and images need it; random words is better with it.
        data: the rows.
        samples: rows at most.
        max_length: tokens of a row at most; None for as many as the model takes.
        seed: seed of the sample and of random words.
        writer: what writes targets for sources alone; None for `model`, greedily.

    Returns:
        The features, one per row, and a summary of the source for reports.

    Raises:
        DataError: if the data cannot be read or used, or there are fewer than two rows.
    """
    if isinstance(data, str) and data == "synthetic":
        features = synthetic_features(model, processor, samples, max_length, seed)
        return _masked(model, processor, features, {"source": "synthetic", "rows": len(features)}, seed)
    if isinstance(data, Mixture):
        raise DataError("Several sources cannot be used here. Name one.")
    kind = input_kind(model)
    if kind == "videos":
        raise DataError(VIDEOS)
    rows, summary = _read(model, DataSource(data) if isinstance(data, str) else data, samples, seed)
    require_two(rows, f"rows of {summary['source']}" if isinstance(data, DataSource | str) else "rows")
    if processor is None:
        raise DataError(
            "Text needs the model's tokenizer, images its image processor and recordings its feature extractor: pass "
            "tokenizer=..."
        )
    _check_rows(rows, kind, has_decoder(model))  # all of them: what is wrong is said by its number
    if len(rows) > samples:
        rows = sampled(rows, samples, seed)
    summary["rows"] = len(rows)
    if kind == "images":
        return image_features(model, processor, rows, writer), summary
    if kind == "audio":
        return audio_features(model, processor, rows, writer), summary
    features = row_features(model, processor, rows, max_length, writer)
    limit = longest_text(model, max_length)
    if at_limit := sum(len(feature["input_ids"]) >= limit for feature in features):
        logger.warning("Text beyond %d tokens is truncated; rows of as many: %d.", limit, at_limit)
    _warn_of_unknown(processor, features, summary["source"])
    return _masked(model, processor, features, summary, seed)


def _masked(
    model: PreTrainedModel, tokenizer: Any | None, features: list[Feature], summary: DataSummary, seed: int
) -> tuple[list[Feature], DataSummary]:
    """The rows, and a summary that says so, with some tokens masked if the model predicts those."""
    if not predicts_masked(model) or getattr(tokenizer, "mask_token_id", None) is None:
        return features, summary
    return without_labels(masked(features, tokenizer, seed)), summary | {"masked": MASKED}


def _read(
    model: PreTrainedModel, data: DataSource | Iterable[Any], samples: int, seed: int
) -> tuple[list[Any], DataSummary]:
    """A sample of a source's rows, or the rows that are given, and a summary of the source without their number."""
    if isinstance(data, Mapping):
        raise DataError(
            f"These are no rows, but a single mapping of {', '.join(map(str, data))}. Give a list of batches."
        )
    summary: DataSummary = {"source": "rows"}
    if isinstance(data, DataSource):
        name = Path(data.path).name if os.path.exists(os.path.expanduser(data.path)) else data.path
        summary = {"source": name, "columns": list(data.columns), "subset": data.subset, "split": data.split}
        rows = read_rows(data, samples, kind=input_kind(model), targets=has_decoder(model), seed=seed)
    else:
        full = (row for row in data if not _is_blank(row))
        rows = list(full if isinstance(data, Sized) else itertools.islice(full, samples))  # which may have no end
    return rows, summary


def _is_blank(row: Any) -> bool:
    """Whether a row is text, and all of it empty or absent."""
    parts = row if isinstance(row, list | tuple) else (row,)
    return all(part is None or (isinstance(part, str) and not part.strip()) for part in parts)


def of_one_length(model: PreTrainedModel, processor: Any | None, features: Sequence[Feature]) -> list[Batch]:
    """Batches of at most 16 rows that need no padding, which would count among the activations of a graph."""
    by_length: dict[int, list[Feature]] = {}
    for feature in features:
        by_length.setdefault(length_of(feature), []).append(feature)
    return [
        collate(model, processor, same[first : first + _TOGETHER])
        for _, same in sorted(by_length.items())
        for first in range(0, len(same), _TOGETHER)
    ]


def _warn_of_unknown(tokenizer: Any, features: Sequence[Feature], source: str) -> None:
    """Warns if many tokens of a source are unknown to the tokenizer, as those of another script are."""
    unknown = getattr(tokenizer, "unk_token_id", None)
    special = {number for number in tokenizer.all_special_ids if number != unknown}
    tokens = [number for feature in features for number in feature["input_ids"] if number not in special]
    if unknown is None or not tokens:
        return
    part = tokens.count(unknown) / len(tokens)
    if part > _UNKNOWN:
        logger.warning(
            "%.0f %% of the tokens of %s are unknown to the tokenizer: the model does not read this kind of text.",
            100 * part,
            source,
        )


_KINDS = {"images": ("convert", "an image (of PIL)"), "audio": ("rate", "a recording, read from a file")}
"""By the kind of input, an attribute that a row of it has, and what it is."""


def _check_rows(rows: list[Any], kind: str, writes: bool) -> None:
    """Raises a DataError for a row of another kind: neither a string nor a pair of strings, no image, no recording.

    Args:
        rows: the rows.
        kind: of the model's input.
        writes: whether a row may lack its second part, the target.
    """
    for number, row in enumerate(rows, 1):
        what = f"a {type(row).__name__}"
        if kind in _KINDS:
            attribute, name = _KINDS[kind]
            if not hasattr(row, attribute):
                raise DataError(f"The model takes {kind}, so a row must be {name}; row {number} is {what}.")
            continue
        parts = (row,) if isinstance(row, str) else row
        if not isinstance(parts, list | tuple) or len(parts) not in (1, 2):
            what = f"{len(parts)} parts" if isinstance(parts, list | tuple) else what
            raise DataError(f"A row of text must be a string or a pair of strings; row {number} is {what}.")
        if not writes and not all(isinstance(part, str) for part in parts):
            raise DataError(f"A row of text must be a string or a pair of strings; row {number} is {str(row)[:60]}.")


def require_two(rows: list[Any], what: str = "rows") -> None:
    """Raises a DataError for fewer than two rows, or batches."""
    if len(rows) < 2:
        raise DataError(
            f"At least 2 {what} are needed, one of them to hold out; here {'is' if len(rows) == 1 else 'are'} "
            f"{len(rows)}."
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
