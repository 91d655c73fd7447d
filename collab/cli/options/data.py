"""Options on data: where the rows are, which of them to use, and what their labels are for."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import click

from ...data.source import DataSource, NamedSource
from ...data.task import GLUE, KINDS, Task, task_named
from ..command import Decorator, gathers

LABELLED = "a file (CSV, TSV, JSON Lines, Parquet) or a data set on the Hub"
SOURCES = (
    "a file (text, CSV, TSV, JSON Lines, Parquet), a folder of images or of WAV files, a data set on the Hub, or "
    "synthetic (random words)"
)

text_column_option = click.option(
    "--text-column",
    multiple=True,
    help="Column with the text; twice for pairs. In a file without a header, its number from 0.",
)
label_column_option = click.option(
    "--label-column", help="Column with the labels. In a file without a header, its number from 0."
)
max_length_option = click.option(
    "--max-length", type=int, show_default="as many as the model takes", help="Largest number of tokens in a row."
)


def subset_option(flag: str = "--subset") -> Decorator:
    """--subset, by whatever flag."""
    return click.option(flag, "subset", help="Configuration of a data set on the Hub.")


def split_option(flag: str = "--split", name: str = "split", default: str = "train") -> Decorator:
    """--split, by whatever flag, or the split of one of several data sets."""
    return click.option(flag, name, default=default, help="Split of a data set on the Hub.")


def samples_option(default: int | None, flag: str = "--samples") -> Decorator:
    """--samples: how much of the data to use."""
    says = "all" if default is None else None
    return click.option(flag, type=int, default=default, show_default=says, help="Largest number of rows to use.")


Unlabelled = Callable[[str], NamedSource]
"""Random words, or a file or data set of a name, as --text-column, --subset and --split say."""


def _unlabelled(text_column: tuple[str, ...], subset: str | None, split: str) -> Unlabelled:
    return lambda name: "synthetic" if name == "synthetic" else DataSource(name, text_column, subset, split)


def unlabelled_options(prefix: str = "--") -> Decorator:
    """--text-column, --subset and --split, gathered as ``unlabelled``, which reads what the name of a source means."""
    return gathers(
        "unlabelled",
        _unlabelled,
        text_column_option,
        subset_option(f"{prefix}subset"),
        split_option(f"{prefix}split"),
    )


def _data(data: str | None, unlabelled: Unlabelled) -> NamedSource | None:
    return None if data is None else unlabelled(data)


def data_options(*, required: bool = False, default: str | None = None) -> Decorator:
    """--data and what says where in it the rows are."""
    return gathers(
        "data",
        _data,
        click.option("--data", required=required, default=default, help=f"Rows: {SOURCES}."),
        unlabelled_options(),
    )


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
