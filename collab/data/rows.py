"""Rows without labels: text, pairs of texts, images or recordings."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from typing import Any

from ..errors import DataError
from ..models.inputs import Kind
from .source import DataSource, Records, open_records

Row = Any
"""A string, a pair of strings, a PIL image or a `Recording`."""


def read_rows(source: DataSource, samples: int, *, kind: Kind = "text", seed: int = 0) -> list[Row]:
    """A random sample of a source's rows.

    Args:
        source: source of the rows.
        samples: rows at most.
        kind: what the rows are.
        seed: seed of the sample.

    Returns:
        Strings, pairs of strings, images or recordings; empty rows are omitted.

    Raises:
        DataError: if the source cannot be read, lacks a column, or has no rows.
    """
    records = open_records(source, kind=kind, seed=seed)
    if not records.names:
        raise DataError(f"{source.path} has no rows.")
    columns = _columns(records, kind)
    rows = (tuple(record[name] for name in columns) for record in records)
    if kind == "text":
        rows = (row for row in rows if all(isinstance(text, str) and text.strip() for text in row))
    sample = _reservoir(rows, samples, seed)
    if not sample:
        raise DataError(f"{source.path} has no rows.")
    return [row[0] if len(row) == 1 else row for row in sample]


def all_rows(source: DataSource) -> Iterator[Row]:
    """All rows of text of a source, in order; empty ones are omitted.

    Raises:
        DataError: as `read_rows`.
    """
    records = open_records(source)
    if not records.names:
        raise DataError(f"{source.path} has no rows.")
    columns = _columns(records, "text")
    for record in records:
        row = tuple(record[name] for name in columns)
        if all(isinstance(text, str) and text.strip() for text in row):
            yield row[0] if len(row) == 1 else row


def _columns(records: Records, kind: Kind) -> tuple[str, ...]:
    if records.source.columns:
        return tuple(records.require(name) for name in records.source.columns)
    names = records.names
    usual = {"text": ("text", "sentence"), "images": ("image", "img"), "audio": ("audio",)}[kind]
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
