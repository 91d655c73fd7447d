"""Rows without labels: text, pairs of texts, images or recordings."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from typing import Any

from ..errors import DataError
from ..models.inputs import InputKind
from .source import DataSource, Records, open_records

Row = Any
"""A string, a pair of strings, a PIL image or a `Recording`."""


def read_rows(
    source: DataSource, samples: int, *, kind: InputKind = "text", targets: bool = False, seed: int = 0
) -> list[Row]:
    """A random sample of a source's rows.

    Args:
        source: source of the rows.
        samples: rows at most.
        kind: what the rows are.
        targets: whether a second column has the targets of the first, so that neither may be missing.
        seed: seed of the sample.

    Returns:
        Strings, pairs of strings, images or recordings; empty rows are omitted.

    Raises:
        DataError: if the source cannot be read, lacks a column, has no rows, or has a row with a part missing.
    """
    records = open_records(source, kind=kind, seed=seed)
    columns = _columns(records, kind)
    rows: Iterator[tuple] = (tuple(record[name] for name in columns) for record in records)
    if kind == "text":
        rows = _pairs(rows, columns, source) if targets and len(columns) == 2 else filter(_is_full, rows)
    sample = sampled(rows, samples, seed)
    if not sample:
        raise DataError(f"{source.path} has no rows.")
    return [row[0] if len(row) == 1 else row for row in sample]


def all_texts(sources: Iterable[DataSource]) -> Iterator[str]:
    """All texts of some sources, in order: of the columns that they name, or of every column. Empty ones are omitted.

    Raises:
        DataError: if a source cannot be read, lacks a column or has no rows.
    """
    for source in sources:
        records = open_records(source)
        columns = [records.require(name) for name in source.columns or records.names]
        for record in records:
            yield from (record[name] for name in columns if _is_full((record[name],)))


def _is_full(row: tuple) -> bool:
    """Whether there is text in every column."""
    return all(isinstance(text, str) and text.strip() for text in row)


def _pairs(rows: Iterable[tuple], columns: tuple[str, ...], source: DataSource) -> Iterator[tuple]:
    """The sources with their targets; rows without either are omitted."""
    wrong = None
    for number, row in enumerate(rows, 1):
        if _is_full(row):
            yield row
        elif wrong is None:
            there = [(name, text) for name, text in zip(columns, row, strict=True) if _is_full((text,))]
            wrong = (number, *there[0]) if there else None
    if wrong is not None:  # once the file is read and closed
        number, name, text = wrong
        raise DataError(
            f"The row {number} of {source.path} has text in {name!r}, {text[:60]!r}, but none in "
            f"{columns[columns[0] == name]!r}. Give every source a target and every target a source, or the column of "
            "the sources alone, to let the model answer them itself."
        )


def _columns(records: Records, kind: InputKind) -> tuple[str, ...]:
    if records.source.columns:
        return tuple(records.require(name) for name in records.source.columns)
    names = records.names
    usual = {"text": ("text", "sentence"), "images": ("image", "img"), "audio": ("audio",)}[kind]
    column = next((name for name in usual if name in names), names[0] if len(names) == 1 else None)
    if column is None:
        raise DataError(
            f"{records.source.path} has several columns; name the one of the text with --text-column, or two of pairs "
            f"(in Python columns=): {records.columns_text}"
        )
    return (column,)


def sampled(rows: Iterable[Any], samples: int, seed: int) -> list[Any]:
    """A uniform sample in one pass, in random order."""
    generator = random.Random(seed)
    kept: list[Any] = []
    for count, row in enumerate(rows):
        if count < samples:
            kept.append(row)
        elif (place := generator.randrange(count + 1)) < samples:
            kept[place] = row
    generator.shuffle(kept)
    return kept
