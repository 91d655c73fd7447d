"""Sources of data: files, folders of images or recordings, and data sets on the Hub."""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ..errors import ConfigurationError, DataError, first_line

if TYPE_CHECKING:
    from ..models.inputs import InputKind

_BUILDERS = {
    ".txt": "text",
    ".csv": "csv",
    ".tsv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".parquet": "parquet",
}

TEXT_COLUMNS: tuple[tuple[str, ...], ...] = (
    ("sentence1", "sentence2"),
    ("premise", "hypothesis"),
    ("question1", "question2"),
    ("question", "sentence"),
    ("sentence",),
    ("text",),
)
"""Names of the columns of text in labelled data, where none are named."""

_SHOWN = 40
"""Characters of a column's name in a message; the first row of a file without a header may hold whole sentences."""


def check_length(max_length: int | None) -> None:
    """Raises a ConfigurationError for a largest number of tokens that leaves no room for text."""
    if max_length is not None and max_length < 3:
        raise ConfigurationError(f"max_length must be at least 3 tokens, two of them special ones, not {max_length}.")


@dataclass(frozen=True)
class DataSource:
    """A source of rows.

    Attributes:
        path: a text file with one row per line, a CSV, TSV, JSON Lines or Parquet file, a folder of images or of WAV
            files, or the name of a data set on the Hub.
        columns: one column, or two for pairs. In a CSV or TSV file without a header, their numbers from 0. If empty,
            the usual names are tried, or the only column is used.
        subset: configuration of a data set on the Hub.
        split: split of a data set on the Hub.

    Raises:
        ConfigurationError: if there are more than two columns, or two of the same name.
    """

    path: str
    columns: tuple[str, ...] = ()
    subset: str | None = None
    split: str = "train"

    def __post_init__(self) -> None:
        if len(self.columns) > 2:
            raise ConfigurationError(f"Give one text column, or two for pairs, not {len(self.columns)}.")
        if len(self.columns) > len({*self.columns}):
            raise ConfigurationError(f"A pair needs two different columns, not {self.columns[0]!r} twice.")


NamedSource = Literal["synthetic"] | DataSource
"""Rows without labels that can be named on a command line: random words, or a source."""


@dataclass(frozen=True)
class Mixture:
    """Several sources of rows without labels, mixed by tokens.

    Attributes:
        sources: each a `DataSource`, ``"synthetic"`` (random words), or rows, by the name that reports give it.
        weights: weights of sources, 1 for those not named: a source of weight 2 gives twice as many tokens as one of
            weight 1, as far as it has them.

    Raises:
        ConfigurationError: if there are no sources, a source is given twice, or a weight is not above 0 or is of no
            source.
    """

    sources: Mapping[str, Any]
    weights: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.sources:
            raise ConfigurationError("A mixture needs at least one source.")
        seen: dict[DataSource, str] = {}
        for name, source in self.sources.items():
            if isinstance(source, DataSource):
                key = replace(source, path=os.path.realpath(os.path.expanduser(source.path)))
                if key in seen:
                    raise ConfigurationError(f"{name} is given twice; give it once, with a weight: {seen[key]}=2.")
                seen[key] = name
        for name, weight in self.weights.items():
            if name not in self.sources:
                raise ConfigurationError(f"There is a weight for {name!r}, but no such source.")
            check_weight(name, weight)

    def weight(self, name: str) -> float:
        """The weight of a source."""
        return self.weights.get(name, 1.0)


def check_weight(name: str, weight: float) -> None:
    """Raises a ConfigurationError for a weight of a source that is not a number above 0."""
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight < math.inf:
        raise ConfigurationError(
            f"The weight of {name} must be a number above 0, not {weight!r}. Leave out a source that is to count for "
            "nothing."
        )


@dataclass(frozen=True)
class LabelledData:
    """Labelled rows to train on and to evaluate on.

    Attributes:
        train: training rows; None for the task's own.
        held_out: held-out rows; None for the task's own.
        label_column: column of the labels; None to look for the usual names.
        labels: class names in the order of their numbers; taken from the data if empty.
        samples: rows of `train` at most, the first ones; None for all.
        new_head: replace the model's head by a new one for these labels.
    """

    train: DataSource | None = None
    held_out: DataSource | None = None
    label_column: str | None = None
    labels: tuple[str, ...] = ()
    samples: int | None = None
    new_head: bool = False


@dataclass(frozen=True)
class Records(Iterable[dict[str, Any]]):
    """An open source.

    Attributes:
        source: the source.
        stream: its rows, each by column.
        names: names of the columns.
        features: features of the columns in `datasets`, such as class names.
    """

    source: DataSource
    stream: Iterable[dict[str, Any]]
    names: list[str]
    features: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.names:
            raise DataError(f"{self.source.path} has no rows.")

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """The rows; DataError if a row cannot be read."""
        try:
            yield from self.stream
        except (OSError, ValueError, KeyError, RuntimeError) as error:
            raise DataError(f"{self.source.path} could not be read: {first_line(error)}") from error

    def require(self, name: str) -> str:
        """Returns the name of a column; DataError if there is no such column."""
        if name not in self.names:
            raise DataError(f"{self.source.path} has no column {name!r}; {self.columns_text}")
        return name

    @property
    def columns_text(self) -> str:
        """The columns for a message, and what to do where the first row of a table was read as their names."""
        if self.numbered:
            return f"it was read without a header, and its columns are numbered 0 to {len(self.names) - 1}."
        names = ", ".join(name if len(name) <= _SHOWN else f"{name[:_SHOWN]}…" for name in self.names)
        if _BUILDERS.get(Path(self.source.path).suffix) != "csv":
            return f"it has {names}."
        return (
            f"its first line names {names}. If that is a row and not a header, give the numbers of the columns, from "
            "0: --text-column 0 --text-column 1 for pairs, and --label-column 2 where labels are read."
        )

    @property
    def numbered(self) -> bool:
        """Whether a table was read without a header, its columns by number."""
        return _BUILDERS.get(Path(self.source.path).suffix) == "csv" and _are_numbers(self.source.columns)


def open_records(source: DataSource, *, kind: InputKind = "text", seed: int | None = None) -> Records:
    """Opens a source, to be read in one pass.

    Args:
        source: the source.
        kind: what the rows are, which tells what a folder holds.
        seed: shuffles a data set on the Hub, limited to a hundred thousand rows; None to read all in order.

    Raises:
        DataError: if it does not exist, cannot be read or has no rows.
    """
    import datasets  # slow to import

    path = Path(os.path.expanduser(source.path))  # Path's own raises where there is no such home folder
    datasets.disable_progress_bars()
    try:
        if path.is_dir() and kind == "audio":
            from .audio import recordings_in  # numpy is slow to import

            return Records(source, ({"audio": recording} for recording in recordings_in(path)), ["audio"])
        if path.is_dir() and kind == "images":
            stream = datasets.load_dataset("imagefolder", data_dir=str(path), split="train", streaming=True)
        elif path.is_file():
            if path.suffix not in _BUILDERS:
                raise DataError(f"Unsupported file type {path.suffix or path.name!r}; use {', '.join(_BUILDERS)}.")
            options, names = _csv_options(path, source.columns) if _BUILDERS[path.suffix] == "csv" else ({}, None)
            stream = datasets.load_dataset(
                _BUILDERS[path.suffix], data_files=str(path), split="train", streaming=True, **options
            )
            if path.suffix == ".txt":
                names = ["text"]
            if names is not None:
                return Records(source, stream, names)
        elif path.is_dir():
            raise DataError(f"{path} is a folder; give a text file.")
        else:
            stream = datasets.load_dataset(source.path, source.subset, split=source.split, streaming=True)
            if seed is not None:
                stream = stream.shuffle(seed=seed, buffer_size=10_000).take(100_000)
        if stream.column_names is None:
            stream = stream._resolve_features()
    except StopIteration:
        return Records(source, [], [])
    except DataError:
        raise
    except Exception as error:  # every loader has its own exceptions
        if os.path.exists(path):  # Path's own raises for names that are too long
            raise DataError(f"{path} could not be read: {first_line(error)}") from error
        if Path(source.path).suffix in _BUILDERS or is_path(source.path):
            raise DataError(f"There is no file or folder {source.path!r}.") from error
        raise DataError(
            f"No file {source.path!r} was found, and no data set of that name on the Hub or in the local cache: "
            f"{first_line(error)}"
        ) from error
    names = [str(name) for name in stream.column_names or []]
    return Records(source, stream, names, dict(stream.features or {}))


def is_path(name: str) -> bool:
    """Whether a name can only be that of a file or folder here: what is on the Hub is called user/name or name."""
    return name.startswith(("/", ".", "~")) or name.count("/") > 1


def _are_numbers(columns: tuple[str, ...]) -> bool:
    """Whether columns are given by number, as in a file without a header."""
    return bool(columns) and all(name.isdigit() for name in columns)


def _csv_options(path: Path, columns: tuple[str, ...]) -> tuple[dict[str, Any], list[str]]:
    """Options for reading a CSV or TSV file, and the names of its columns."""
    options: dict[str, Any] = {"keep_default_na": False}
    if path.suffix == ".tsv":
        options |= {"sep": "\t", "quoting": csv.QUOTE_NONE}
    with path.open(newline="", encoding="utf-8-sig") as file:
        quoting = options.get("quoting", csv.QUOTE_MINIMAL)
        # Blank lines are no rows for pandas, either.
        rows = filter(None, csv.reader(file, delimiter=options.get("sep", ","), quoting=quoting))
        names = next(rows, [])
        try:
            first = next(rows, [])
        except csv.Error:  # a text that is too long for this reader
            first = []
    _check_fields(path, names, first, _are_numbers(columns))
    if _are_numbers(columns):  # no header
        names = [str(number) for number in range(len(names))]
        options |= {"header": None, "names": names}
    # Text of digits stays text; what the other columns hold is found out.
    usual = {name for group in TEXT_COLUMNS for name in group}
    texts = [name for name in names if name in (columns or usual) or len(names) == 1]
    return options | {"converters": dict.fromkeys(texts, str)}, names


def _check_fields(path: Path, header: list[str], first: list[str], headless: bool) -> None:
    """Raises a DataError if the first rows of a CSV or TSV file are not of one table, of which text would be lost."""
    if len(header) == 1 and not headless and any(mark in header[0] for mark in ";\t"):
        raise DataError(
            f"The columns of {path} are separated by {'semicolons' if ';' in header[0] else 'tabs'}. Separate them by "
            "commas in a .csv file, or by tabs in a .tsv file."
        )
    if len(first) > len(header) > 0:
        advice = (
            "Leave tabs out of the text"
            if path.suffix == ".tsv"
            else 'Quote text that holds commas: "one, two"; or give one text a line, in a .txt file'
        )
        raise DataError(f"The first row of {path} has {len(header)} columns and the second one {len(first)}. {advice}.")
