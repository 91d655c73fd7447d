"""Options on data: where the rows are, which of them to use, and what their labels are for."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from ...data.source import DataSource, Mixture, NamedSource, check_weight
from ...data.task import GLUE, KINDS, Task, task_named
from ...errors import ConfigurationError
from ..command import Decorator, gathers, grouped, once, only_with

LABELLED = "a file (CSV, TSV, JSON Lines, Parquet) or a data set on the Hub"
SOURCES = (
    "a file (text, CSV, TSV, JSON Lines, Parquet), a folder of images or of WAV files, a data set on the Hub, or "
    "synthetic (random words)"
)

SEVERAL = "May be given several times: sources are mixed evenly by tokens, or by weights (wiki.txt=2)."

text_column_option = grouped(
    "Data",
    click.option(
        "--text-column",
        multiple=True,
        help="Column with the text; twice for pairs. In a file without a header, its number from 0.",
    ),
)
label_column_option = grouped(
    "Data",
    click.option("--label-column", help="Column with the labels. In a file without a header, its number from 0."),
)
max_length_option = grouped(
    "Data",
    click.option(
        "--max-length", type=int, show_default="as many as the model takes", help="Largest number of tokens in a row."
    ),
)


def subset_option(flag: str = "--subset") -> Decorator:
    """--subset, by whatever flag."""
    return grouped("Data", click.option(flag, "subset", help="Configuration of a data set on the Hub."))


def split_option(flag: str = "--split", name: str = "split", default: str = "train") -> Decorator:
    """--split, by whatever flag, or the split of one of several data sets."""
    return grouped("Data", click.option(flag, name, default=default, help="Split of a data set on the Hub."))


def samples_option(default: int | None, flag: str = "--samples") -> Decorator:
    """--samples: how much of the data to use."""
    says = "all" if default is None else None
    return grouped(
        "Data",
        click.option(flag, type=int, default=default, show_default=says, help="Largest number of rows to use."),
    )


@dataclass(frozen=True)
class Unlabelled:
    """What the name of a source means: random words, or a file or data set, as these options say.

    Attributes:
        text_column: columns with the text, of files that have columns.
        subset: configuration of a data set on the Hub.
        split: its split.
    """

    text_column: tuple[str, ...]
    subset: str | None
    split: str

    def source(self, name: str) -> NamedSource:
        """The source of a name."""
        if name == "synthetic":
            return "synthetic"
        return DataSource(name, self.text_column if _has_columns(name) else (), self.subset, self.split)

    def sources(self, names: Sequence[str]) -> NamedSource | Mixture:
        """One source, or several, mixed with the weights that their names end with."""
        weighted = [_weighted(name) for name in names]
        if len(weighted) == 1:
            return self.source(weighted[0][0])
        paths = [path for path, _ in weighted]
        short = [Path(path).name if os.path.exists(path) else path for path in paths]
        titles = [path if short.count(name) > 1 else name for path, name in zip(paths, short, strict=True)]
        if len({*paths}) < len(paths):
            twice = next(path for path in paths if paths.count(path) > 1)
            raise ConfigurationError(f"{twice} is given twice; give it once, with a weight: {twice}=2.")
        return Mixture(
            {title: self.source(path) for title, path in zip(titles, paths, strict=True)},
            {title: weight for title, (_, weight) in zip(titles, weighted, strict=True) if weight != 1},
        )


def _has_columns(name: str) -> bool:
    """Whether a source may have columns, as text and random words do not."""
    return name not in ("synthetic", "none") and Path(name).suffix != ".txt"


def _unlabelled(
    text_column: tuple[str, ...],
    subset: str | None,
    split: str,
    *,
    calibration: tuple[str, ...] = (),
    heal: tuple[str, ...] = (),
    data: str | tuple[str, ...] | None = None,
    data2: str | None = None,
) -> Unlabelled:
    """What names mean; --text-column is for those of the command's sources that have columns."""
    several = data if isinstance(data, tuple) else (data,)
    names = [_weighted(name)[0] for name in (*calibration, *heal, *several, data2) if name is not None]
    if text_column and names and not any(map(_has_columns, names)):
        raise ConfigurationError("--text-column names a column, but none of these sources has columns.")
    return Unlabelled(text_column, subset, split)


def _weighted(name: str) -> tuple[str, float]:
    """A source and its weight, from ``wiki.txt=2`` or ``wiki.txt``."""
    path, equals, number = name.rpartition("=")
    if not equals or os.path.exists(name):
        return name, 1.0
    try:
        weight = float(number)
    except ValueError:
        if os.path.exists(path):
            raise ConfigurationError(f"The weight of {path} must be a number, not {number!r}.") from None
        return name, 1.0
    check_weight(path, weight)
    return path, weight


def unlabelled_options(sources: str | tuple[str, ...] = "data", prefix: str = "--") -> Decorator:
    """--text-column, --subset and --split, gathered as ``unlabelled``, which reads what the name of a source means.

    Args:
        sources: parameters of the options that name sources; without all of them these are refused.
        prefix: how the flags of subset and split begin.
    """
    options = text_column_option, subset_option(f"{prefix}subset"), split_option(f"{prefix}split")
    return gathers("unlabelled", _unlabelled, only_with(sources, *options))


def _data(data: str | None, unlabelled: Unlabelled, task: Task | None = None) -> NamedSource | None:
    """The rows; by default those that the task is trained on, if it comes with data."""
    return unlabelled.source(data) if data is not None else None if task is None else task.train


def _mixed_data(data: tuple[str, ...], unlabelled: Unlabelled) -> NamedSource | Mixture:
    return unlabelled.sources(data)


def data_options(others: tuple[str, ...] = ()) -> Decorator:
    """--data and what says where in it the rows are; this is said of what some other options name, too."""
    option = once(click.option("--data", show_default="those of --task", help=f"Rows: {SOURCES}."))
    return gathers("data", _data, option, unlabelled_options(("data", *others)))


def mixed_data_options(default: str) -> Decorator:
    """--data, which may be given several times, and what says where in it the rows are."""
    option = click.option(
        "--data", multiple=True, default=(default,), show_default=default, help=f"Rows: {SOURCES}. {SEVERAL}"
    )
    return gathers("data", _mixed_data, option, unlabelled_options())


def _task(task: str | None, metric: str | None = None) -> Task | None:
    return None if task is None else task_named(task, metric)


def task_option(default: str | None = None, kinds: Sequence[str] = KINDS) -> Decorator:
    """--task, with what the help says of its default and of its values; it is required if it has no default."""
    values = f"{', '.join(kinds)}; or, with its data, columns and metric, {', '.join(GLUE)}"
    return gathers(
        "task",
        _task,
        click.option(
            "--task",
            metavar="TASK",
            required=default is None,
            show_default=default,
            help=f"What the labels are for: {values}.",
        ),
    )
