"""Labelled data: rows of text with labels, and the names of the labels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import DataError
from .source import TEXT_COLUMNS, DataSource, Records, open_records
from .task import Task

_LABELS = ("label", "labels", "score", "target")
_TAGS = ("ner_tags", "tags", "pos_tags", "labels")


@dataclass(frozen=True)
class Examples:
    """Labelled rows of a task.

    Attributes:
        source: file or data set, for messages.
        name: name of the data, for reports.
        texts: one or two strings per row; for token classification a list of words per row.
        labels: per row a number, a class name or a class number, or a list of them; empty for masked language models,
            and for translation, where the second text of a row is the target.
        names: class names from `datasets`, if it has them.
    """

    source: str
    name: str
    texts: list[Any]
    labels: list[Any]
    names: tuple[str, ...] | None = None


def read_examples(
    source: DataSource, task: Task, label_column: str | None = None, samples: int | None = None
) -> Examples:
    """Reads the rows of a task.

    Args:
        source: source of the rows; if it names no columns, the usual names are tried.
        task: the task.
        label_column: column of the labels; None to look for the usual names.
        samples: rows at most, the first ones; None for all.

    Raises:
        DataError: if the source cannot be read, lacks a column, or has no rows.
    """
    if label_column is None and source in (task.train, task.held_out):
        label_column = task.label_column
    records = open_records(source)
    words = task.kind == "token-classification"
    texts = tuple(records.require(name) for name in source.columns) or _texts(records, task)
    labels = None if task.kind in ("masked-lm", "translation") else _label(records, task, label_column, texts)
    rows: list[Any] = []
    values: list[Any] = []
    for number, record in enumerate(records):
        if samples is not None and len(rows) >= samples:
            break
        row = record[texts[0]] if words else tuple(record[name] for name in texts)
        if not _is_text(row, words):
            what = "a list of words" if words else "text"
            raise DataError(f"Row {number + 1} of {source.path} has no {what} in {', '.join(texts)}.")
        if task.kind == "masked-lm" and not any(text.strip() for text in row):
            continue  # an empty line
        rows.append(row)
        if labels is not None:
            _check_label(record[labels], row, words, f"Row {number + 1} of {source.path}", labels)
            values.append(record[labels])
    if not rows:
        raise DataError(f"{source.path} has no rows.")
    name = "/".join(filter(None, (Path(source.path).name, source.subset)))
    return Examples(source.path, name, rows, values, _names(records, labels))


def label_names(examples: Sequence[Examples], given: Sequence[str] = ()) -> list[str]:
    """The names of the classes in all data, in the order of their numbers.

    Args:
        examples: training and evaluation data.
        given: names from the user, which replace those of numbered classes.

    Raises:
        DataError: if the data has labels other than those given, or the labels are not classes.
    """
    known = next((part.names for part in examples if part.names), None)
    values = {value for part in examples for value in _values(part)}
    if given and {*map(str, values)} <= {*given}:  # numbers, too, may be names
        return list(given)
    if all(isinstance(value, int) for value in values):
        if min(values) < 0:
            raise DataError(f"Classes are numbered from 0, but there is a label {min(values)}.")
        names = list(given or known or [f"LABEL_{number}" for number in range(max(values) + 1)])
        if max(values) >= len(names):
            raise DataError(f"There is a label {max(values)}, but only {len(names)} names: {', '.join(names)}.")
        return names
    if any(isinstance(value, float) for value in values):
        raise DataError("The labels are fractional numbers, not classes. Use regression (--task regression).")
    names = list(given) or sorted({*map(str, values)})
    strange = sorted(set(map(str, values)) - set(names))
    if strange:
        raise DataError(f"The data has labels other than {', '.join(names)}: {', '.join(strange[:5])}.")
    return names


def _values(examples: Examples) -> set[Any]:
    """The labels of all rows, and of all words of a row."""
    return {value for row in examples.labels for value in (row if isinstance(row, list) else [row])}


def _spelled(name: str, names: Sequence[str]) -> str | None:
    """A class as a head spells its name, which may differ in case; None if it has no such class, or several."""
    if name in names:
        return name
    alike = [each for each in names if each.casefold() == name.casefold()]
    return alike[0] if len(alike) == 1 else None


def class_numbers(examples: Examples, names: Sequence[str]) -> list[Any]:
    """The labels as numbers of classes.

    Args:
        examples: labelled rows.
        names: class names of the model's head.

    Raises:
        DataError: if the head has no such class.
    """
    numbers = {name: number for number, name in enumerate(names)}
    # A number indexes the data's own class names if it has them, and the head's classes otherwise.
    spelled = [_spelled(name, names) for name in examples.names or ()]
    own = list(dict.fromkeys(name for name in spelled if name is not None))
    if own and len(own) < len(spelled):
        raise DataError(
            f"{examples.source} has the classes {', '.join(examples.names or ())}, and the model's head "
            f"{', '.join(names)}: only some are the same. Train a new head (--new-head), or name the classes "
            "(--labels)."
        )
    known = own or names
    # Or it is a name itself, as 1, 2 and 3 may be.
    named = any(isinstance(value, int) and str(value) in numbers for value in _values(examples))
    by_name = named and not examples.names

    def number(value: Any) -> int:
        if isinstance(value, int) and 0 <= value < len(known) and not by_name:
            return numbers[known[value]]
        name = _spelled(str(value), names) if isinstance(value, int | str) else None
        if name is not None:
            return numbers[name]
        raise DataError(
            f"{examples.source} has the label {value!r}, but the model's head has {', '.join(names)}. Train a new "
            "head (--new-head), or name the classes (--labels)."
        )

    return [[number(label) for label in row] if isinstance(row, list) else number(row) for row in examples.labels]


def numbers(examples: Examples) -> list[float]:
    """The labels as finite numbers; DataError if a label is not one."""
    try:
        values = [float(value) for value in examples.labels]
    except (TypeError, ValueError) as error:
        raise DataError(f"The labels of {examples.source} are not numbers, which regression needs: {error}.") from error
    if not all(map(math.isfinite, values)):
        raise DataError(f"The labels of {examples.source} are not all finite numbers.")
    return values


def _texts(records: Records, task: Task) -> tuple[str, ...]:
    if task.kind == "token-classification":
        return (records.require("tokens" if "tokens" in records.names else "words"),)
    if task.kind == "translation":
        raise DataError(
            f"Which columns of {records.source.path} hold the sources and their targets? Name both with --text-column "
            f"(in Python columns=): {records.columns_text}"
        )
    usual: tuple[tuple[str, ...], ...] = (task.columns, *TEXT_COLUMNS) if task.columns else TEXT_COLUMNS
    if task.kind == "similarity":
        usual = tuple(names for names in usual if len(names) == 2)
    for names in usual:
        if all(name in records.names for name in names):
            return names
    if len(records.names) == 1 and task.kind == "masked-lm":
        return (records.names[0],)
    raise DataError(
        f"Which column of {records.source.path} holds the text? Name it with --text-column, twice for pairs "
        f"(in Python columns=): {records.columns_text}"
    )


def _label(records: Records, task: Task, given: str | None, texts: tuple[str, ...]) -> str:
    if given is not None:
        return records.require(given)
    usual = _TAGS if task.kind == "token-classification" else _LABELS
    column = next((name for name in usual if name in records.names and name not in texts), None)
    if column is None:
        raise DataError(
            f"Which column of {records.source.path} holds the labels? Name it with --label-column (label_column=): "
            f"{records.columns_text}"
        )
    return column


def _check_label(label: Any, row: Any, words: bool, where: str, column: str) -> None:
    if label is None or label == "":
        raise DataError(f"{where} has no label in {column}.")
    if words != isinstance(label, list):
        raise DataError(f"{where} should have {'a list of labels' if words else 'one label'} in {column}.")
    if words and len(label) != len(row):
        raise DataError(f"{where} has {len(row)} words and {len(label)} labels.")
    if not all(isinstance(value, str | int | float) for value in (label if words else [label])):
        raise DataError(f"{where} has no valid label in {column}: {label!r}.")


def _is_text(row: Any, words: bool) -> bool:
    if words:
        return isinstance(row, list) and bool(row) and all(isinstance(word, str) for word in row)
    return all(isinstance(text, str) for text in row)


def _names(records: Records, column: str | None) -> tuple[str, ...] | None:
    feature = records.features.get(column) if column else None
    feature = getattr(feature, "feature", feature)  # of a list
    names = getattr(feature, "names", None)
    return tuple(names) if names else None
