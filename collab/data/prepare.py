"""Features from any kind of data."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from ..errors import DataError
from ..models.inputs import has_decoder, input_kind, longest_text
from ..steps.step import DataSummary
from .features import (
    VIDEOS,
    Feature,
    audio_features,
    image_features,
    row_features,
    synthetic_features,
)
from .rows import read_rows
from .source import DataSource, NamedSource

logger = logging.getLogger(__name__)

Unlabelled = NamedSource | Iterable[Any]
"""A source, random words (``"synthetic"``), or strings, pairs of strings, images or recordings.

For an encoder-decoder, pairs are sources with their targets; for sources alone it writes them itself, greedily."""


def features_of(
    model: PreTrainedModel,
    processor: Any | None,
    data: Unlabelled,
    *,
    samples: int,
    max_length: int | None = None,
    seed: int = 0,
    writer: PreTrainedModel | None = None,
) -> tuple[list[Feature], DataSummary]:
    """Encodes rows without labels for a model.

    Args:
        model: the model to run on them.
        processor: its tokenizer or image processor. Text and images need it; random words is better with it.
        data: the rows.
        samples: rows at most.
        max_length: tokens of a row at most; None for as many as the model takes.
        seed: seed of the sample and of random words.
        writer: the encoder-decoder that writes targets for sources alone; None for `model`.

    Returns:
        The features, one per row, and a summary of the source for reports.

    Raises:
        DataError: if the data cannot be read or used, or there are fewer than two rows.
    """
    if isinstance(data, str) and data == "synthetic":
        features = synthetic_features(model, processor, samples, max_length, seed)
        return features, {"source": "synthetic", "rows": len(features)}
    kind = input_kind(model)
    if kind == "videos":
        raise DataError(VIDEOS)
    summary: DataSummary = {"source": "rows"}
    if isinstance(data, str):
        data = DataSource(data)
    if isinstance(data, DataSource):
        name = Path(data.path).name if os.path.exists(os.path.expanduser(data.path)) else data.path
        summary = {"source": name, "columns": list(data.columns), "subset": data.subset, "split": data.split}
        data = read_rows(data, samples, kind=kind, targets=has_decoder(model), seed=seed)
    rows = list(data)[:samples]
    require_two(rows)
    summary["rows"] = len(rows)
    if processor is None:
        raise DataError(
            "Text needs the model's tokenizer, images its image processor and recordings its feature extractor: pass "
            "tokenizer=..."
        )
    if kind == "text":
        _check_texts(rows)
    if kind == "images":
        return image_features(model, processor, rows, writer), summary
    if kind == "audio":
        return audio_features(model, processor, rows, writer), summary
    features = row_features(model, processor, rows, max_length, writer)
    longest = max(len(feature["input_ids"]) for feature in features)
    if longest >= longest_text(model, max_length):
        logger.warning("Text longer than %d tokens was truncated.", longest)
    return features, summary


def _check_texts(rows: list[Any]) -> None:
    """Raises a DataError for a row that is neither a string nor a pair of strings."""
    for number, row in enumerate(rows, 1):
        parts = (row,) if isinstance(row, str) else row
        if not isinstance(parts, list | tuple) or len(parts) not in (1, 2):
            what = f"{len(parts)} parts" if isinstance(parts, list | tuple) else f"a {type(row).__name__}"
            raise DataError(f"A row of text must be a string or a pair of strings; row {number} is {what}.")


def require_two(rows: list[Any], what: str = "rows") -> None:
    """Raises a DataError for fewer than two rows, or batches."""
    if len(rows) < 2:
        raise DataError(
            f"At least 2 {what} are needed, one of them to hold out; here {'is' if len(rows) == 1 else 'are'} "
            f"{len(rows)}."
        )


def hold_out(rows: list[Any], period: int) -> tuple[list[Any], list[Any]]:
    """Rows to learn from, and every `period`-th row, held out."""
    period = min(period, len(rows))
    return [row for number, row in enumerate(rows, 1) if number % period], rows[period - 1 :: period]
