"""Features from any kind of data, of one source."""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Iterable, Mapping, Sequence, Sized
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from ..errors import DataError
from ..models.inputs import has_decoder, input_kind, longest_text, predicts_masked
from ..steps.step import DataSummary
from .batches import Feature, without_labels
from .encoding import MASKED, masked
from .features import VIDEOS, audio_features, image_features, row_features, synthetic_features
from .rows import read_rows, sampled
from .source import DataSource, Mixture, NamedSource
from .targets import Writer

logger = logging.getLogger(__name__)

Unlabelled = NamedSource | Mixture | Iterable[Any]
"""A source, random words (``"synthetic"``), a mixture of several, or strings, pairs of strings, images or recordings.

Of more rows than are asked for, a random sample is used; of an iterator, which may have no end, the first ones.

For an encoder-decoder, pairs are sources with their targets; for sources alone it writes them itself, greedily."""

_UNKNOWN = 0.2


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
