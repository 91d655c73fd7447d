"""Rows of calibration data: text, pairs of texts or images, from files and from the Hub."""

from __future__ import annotations

import csv
import random
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import CalibrationError, ConfigurationError, first_line

Row = Any
"""A string, a pair of strings, or a PIL image."""

_BUILDERS = {
    ".txt": "text",
    ".csv": "csv",
    ".tsv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".parquet": "parquet",
}


@dataclass(frozen=True)
class DataSource:
    """Where rows come from.

    Attributes:
        path: a text file with a row on each line, a CSV, TSV, JSON Lines or Parquet file, a folder of images, or the
            name of a data set on the Hub.
        columns: one column, or two for pairs. In a CSV or TSV file without a header, their numbers from 0. Found by
            itself if there is only one column of text (or images).
        subset: configuration of a data set on the Hub.
        split: of a data set on the Hub.

    Raises:
        ConfigurationError: if there are more than two columns.
    """

    path: str
    columns: tuple[str, ...] = ()
    subset: str | None = None
    split: str = "train"

    def __post_init__(self) -> None:
        if len(self.columns) > 2:
            raise ConfigurationError(f"Give one text column, or two for pairs, not {len(self.columns)}.")


def read_rows(source: DataSource, samples: int, *, images: bool = False, seed: int = 0) -> list[Row]:
    """A random sample of a source's rows.

    Args:
        source: where from.
        samples: rows at most.
        images: whether the rows are images.
        seed: of the sample.

    Returns:
        Strings, pairs of strings, or images; empty ones are left out.

    Raises:
        CalibrationError: if the source cannot be read, a column is not there, or there is not a single row.
    """
    records, names = _open(source, images, seed)
    if not names:
        raise CalibrationError(f"{source.path} has no rows to calibrate on.")
    columns = _columns(source, names, images)
    rows = (tuple(record[name] for name in columns) for record in records)
    if not images:
        rows = (row for row in rows if all(isinstance(one, str) and one.strip() for one in row))
    try:
        sample = _reservoir(rows, samples, seed)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise CalibrationError(f"{source.path} could not be read: {first_line(error)}") from error
    if not sample:
        raise CalibrationError(f"{source.path} has no rows to calibrate on.")
    return [row[0] if len(row) == 1 else row for row in sample]


def _open(source: DataSource, images: bool, seed: int) -> tuple[Iterable[dict[str, Any]], list[str]]:
    """Records and the names of their columns."""
    import datasets  # slow to import

    path = Path(source.path).expanduser()
    datasets.disable_progress_bars()
    try:
        if path.is_dir() and images:
            stream = datasets.load_dataset("imagefolder", data_dir=str(path), split="train", streaming=True)
        elif path.is_file():
            if path.suffix not in _BUILDERS:
                raise CalibrationError(f"{path} is of no kind that is read: {', '.join(_BUILDERS)}.")
            options, names = _csv_options(path, source.columns) if _BUILDERS[path.suffix] == "csv" else ({}, None)
            stream = datasets.load_dataset(
                _BUILDERS[path.suffix], data_files=str(path), split="train", streaming=True, **options
            )
            if path.suffix == ".txt":
                names = ["text"]
            if names is not None:
                return stream, names
        elif path.is_dir():
            raise CalibrationError(f"{path} is a folder. Give a file of text.")
        else:
            stream = datasets.load_dataset(source.path, source.subset, split=source.split, streaming=True)
            stream = stream.shuffle(seed=seed, buffer_size=10_000).take(100_000)
        if stream.column_names is None:
            stream = stream._resolve_features()
    except StopIteration:
        return [], []
    except CalibrationError:
        raise
    except Exception as error:  # data sets fail in as many ways as there are loaders
        raise CalibrationError(
            f"There is no file {source.path!r} here that can be read, and no data set of that name could be had from "
            f"the Hub: {first_line(error)}"
            if not path.exists()
            else f"{path} could not be read: {first_line(error)}"
        ) from error
    return stream, [str(name) for name in stream.column_names or []]


def _csv_options(path: Path, columns: tuple[str, ...]) -> tuple[dict[str, Any], list[str]]:
    """How to read a CSV or TSV file, and the names of its columns."""
    options: dict[str, Any] = {"keep_default_na": False}
    if path.suffix == ".tsv":
        options |= {"sep": "\t", "quoting": csv.QUOTE_NONE}
    with path.open(newline="", encoding="utf-8") as file:
        quoting = options.get("quoting", csv.QUOTE_MINIMAL)
        names = next(csv.reader(file, delimiter=options.get("sep", ","), quoting=quoting), [])
    if columns and all(name.isdigit() for name in columns):  # no header
        names = [str(number) for number in range(len(names))]
        options |= {"header": None, "names": names}
    return options, names


def _columns(source: DataSource, names: list[str], images: bool) -> tuple[str, ...]:
    for name in source.columns:
        if name not in names:
            raise CalibrationError(f"{source.path} has no column {name!r}; it has {', '.join(names) or 'none'}.")
    if source.columns:
        return source.columns
    usual = ("image", "img") if images else ("text", "sentence")
    found = next((name for name in usual if name in names), names[0] if len(names) == 1 else None)
    if found is None:
        raise CalibrationError(
            f"{source.path} has several columns; say with --text-column which holds the text: {', '.join(names)}."
        )
    return (found,)


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
