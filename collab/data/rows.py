"""Rows without labels: text, pairs of texts or images."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

from ..errors import DataError
from .source import DataSource, Records, open_records

Row = Any
"""A string, a pair of strings, or a PIL image."""


def read_rows(source: DataSource, samples: int, *, images: bool = False, seed: int = 0) -> list[Row]:
    """A random sample of a source's rows.

    Args:
        source: source of the rows.
        samples: rows at most.
        images: whether the rows are images.
        seed: seed of the sample.

    Returns:
        Strings, pairs of strings, or images; empty rows are omitted.

    Raises:
        DataError: if the source cannot be read, lacks a column, or has no rows.
    """
    records = open_records(source, images=images, seed=seed)
    if not records.names:
        raise DataError(f"{source.path} has no rows.")
    columns = _columns(records, images)
    rows = (tuple(record[name] for name in columns) for record in records)
    if not images:
        rows = (row for row in rows if all(isinstance(text, str) and text.strip() for text in row))
    sample = _reservoir(rows, samples, seed)
    if not sample:
        raise DataError(f"{source.path} has no rows.")
    return [row[0] if len(row) == 1 else row for row in sample]


def _columns(records: Records, images: bool) -> tuple[str, ...]:
    if records.source.columns:
        return tuple(records.require(name) for name in records.source.columns)
    names = records.names
    usual = ("image", "img") if images else ("text", "sentence")
    column = next((name for name in usual if name in names), names[0] if len(names) == 1 else None)
    if column is None:
        raise DataError(
            f"{records.source.path} has several columns; name the one of the text with --text-column (columns=): "
            f"{', '.join(names)}."
        )
    return (column,)


def _reservoir(rows: Iterable[tuple], samples: int, seed: int) -> list[tuple]:
    """A uniform sample in one pass, in random order."""
    generator = random.Random(seed)
    kept: list[tuple] = []
    for count, row in enumerate(rows):
        if count < samples:
            kept.append(row)
        elif (place := generator.randrange(count + 1)) < samples:
            kept[place] = row
    generator.shuffle(kept)
    return kept
