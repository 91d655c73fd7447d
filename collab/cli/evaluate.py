"""`collab evaluate`."""

from __future__ import annotations

from pathlib import Path

import click

from ..data.source import DataSource
from ..evaluation.options import EvaluateOptions
from ..processes import is_main_process
from .command import command, command_line, gathers, once, only_with
from .options.data import (
    LABELLED,
    label_column_option,
    max_length_option,
    samples_option,
    split_option,
    subset_option,
    task_option,
    text_column_option,
)
from .options.measuring import against_option, rounds_option
from .options.model import device_option, model_in, seed_option
from .session import Session


def _source(data: str | None, text_column: tuple[str, ...], subset: str | None, split: str) -> DataSource | None:
    return None if data is None else DataSource(data, text_column, subset, split)


@command(
    "collab evaluate converted --against original --data dev.tsv --task glue/sst2",
    "collab evaluate embedder --data pairs.csv --text-column 0 --text-column 1 --label-column 2",
    summary="Measure a model on labelled rows, alone or beside another.",
)
@gathers("source", _source)
@once(click.option("--data", show_default="the task's own", help=f"Labelled rows: {LABELLED}."))
@task_option("what the model's head is for")
@only_with("data", text_column_option, subset_option(), split_option(default="validation"))
@label_column_option
@against_option
@gathers("options", EvaluateOptions)
@samples_option(None)
@max_length_option
@click.option("--draws", default=EvaluateOptions.draws, help="Draws of the bootstrap, for the intervals.")
@rounds_option(EvaluateOptions.rounds)
@device_option()
@seed_option
@click.option("--record", "recorded", is_flag=True, help="Add the result to the report and the card in MODEL's folder.")
@model_in
def evaluate(model: str, recorded: bool, session: Session) -> None:
    """Measure MODEL on labelled data, with intervals, and beside another model.

    MODEL is an original, converted or compressed, or exported as a graph.
    """
    session.begin(divides=True)
    from ..checkpoints.evaluate import check_recordable
    from ..checkpoints.evaluate import evaluate as evaluate_checkpoint
    from ..io.history import record
    from .outcome import show_steps

    folder = Path(model)
    if recorded:
        check_recordable(folder)
    step = session.call(evaluate_checkpoint).report
    session.result(step.to_dict() | {"command": command_line()}, lambda: show_steps([step]))
    if recorded and is_main_process():
        record(folder, step, name=folder.resolve().name, command=command_line())
