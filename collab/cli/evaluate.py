"""`collab evaluate`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from ..data.source import DataSource
from ..data.task import GLUE, KINDS, task_named
from ..io.history import append
from .options import (
    data_options,
    label_column_option,
    loading_of,
    loading_options,
    max_length_option,
    verbosity_options,
)
from .running import bars, command_line, failures, set_up_logging
from .tables import show_step


@click.command(
    epilog="""\b
Examples:
  collab evaluate converted --against original --data dev.tsv --task glue/sst2
  collab evaluate embedder --data pairs.csv --text-column 0 --text-column 1 --label-column 2"""
)
@click.argument("model")
@click.option("--data", help="Labelled rows: a CSV, TSV, JSON Lines or Parquet file, or a data set on the Hub.")
@click.option("--task", help=f"{', '.join(KINDS)}, or glue/ and a name: {', '.join(GLUE)}.  [default: the head's]")
@data_options
@click.option("--split", default="validation", show_default=True, help="Of a data set on the Hub.")
@label_column_option
@click.option("--against", metavar="MODEL", help="Another model, measured on the same rows and in turn for its speed.")
@click.option("--samples", type=int, help="Rows at most, the first ones.  [default: all]")
@max_length_option
@click.option("--draws", type=int, default=1000, show_default=True, help="Of the bootstrap, for the intervals.")
@click.option("--repeats", type=int, default=3, show_default=True, help="Rounds of the comparison of speed.")
@click.option("--device", type=click.Choice(["cpu", "cuda"]), help="[default: a GPU where there is one]")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the bootstrap and of masked tokens.")
@click.option("--record", "recorded", is_flag=True, help="Add the result to the report and the card in MODEL's folder.")
@loading_options
@verbosity_options
def evaluate(model: str, **given: Any) -> None:
    """Measure MODEL, original or converted, on labelled data, with intervals, and beside another model."""
    set_up_logging(-1 if given["quiet"] else given["verbose"])
    with failures("Interrupted."):
        task = task_named(given["task"]) if given["task"] else None

        from ..checkpoints.evaluate import EvaluateOptions, check_recordable, evaluation_step  # slow to import
        from ..checkpoints.evaluate import evaluate as measure

        if given["recorded"]:
            check_recordable(Path(model))
        source = None
        if given["data"]:
            source = DataSource(given["data"], given["text_column"], given["subset"], given["split"])
        names = ("max_length", "samples", "draws", "repeats", "device", "seed")
        with bars(shown=not given["quiet"]):
            report = measure(
                model,
                source,
                task,
                label_column=given["label_column"],
                against=given["against"],
                options=EvaluateOptions(**{name: given[name] for name in names}),
                reading=loading_of(given),
                command=command_line(),
            )
        step = evaluation_step(report)
        if given["recorded"]:
            append(Path(model), step, name=Path(model).resolve().name)
    if given["as_json"]:
        click.echo(json.dumps(report, indent=2))
    elif not given["quiet"]:
        show_step(step)
