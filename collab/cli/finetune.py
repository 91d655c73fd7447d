"""`collab finetune`."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click

from ..data.source import DataSource
from ..data.task import GLUE, KINDS, task_named
from ..training.options import FinetuneOptions
from .options import (
    data_options,
    label_column_option,
    loading_of,
    loading_options,
    overwrite_option,
    run_of,
    training_options,
    verbosity_options,
)
from .running import INTERRUPTED_TRAINING, bars, command_line, failures, set_up_logging
from .tables import show_step

_RUN = FinetuneOptions().run
_KINDS = ", ".join(one for one in KINDS if one != "similarity")
_TASKS = f"{_KINDS}, or, with its data, columns and metric, {', '.join(GLUE)}."


@click.command(
    epilog="""\b
Examples:
  collab finetune converted tuned --task classification --train train.tsv --eval dev.tsv
  collab finetune bert-base-uncased tuned --task glue/sst2 --epochs 2
  collab finetune bert-base-uncased smaller --task glue/sst2 --prune-heads 0.4 --prune-at 0.5
  accelerate launch --num_processes 2 -m collab finetune converted tuned --task glue/cola"""
)
@click.argument("model")
@click.argument("output", type=click.Path(path_type=Path))
@click.option("--task", required=True, metavar="TASK", help=_TASKS)
@click.option("--train", help="Rows to learn from: a CSV, TSV, JSON Lines or Parquet file, or a data set on the Hub.")
@click.option("--eval", "held_back", help="Rows to choose the best checkpoint by: the same.")
@data_options
@label_column_option
@click.option("--labels", help="Names of the classes in the order of their numbers: negative,positive.")
@click.option("--train-split", default="train", show_default=True, help="Of a data set on the Hub.")
@click.option("--eval-split", default="validation", show_default=True, help="Of a data set on the Hub.")
@click.option("--samples", type=int, help="Rows to learn from at most, the first ones.  [default: all]")
@click.option("--metric", help="Choose the best checkpoint by this one.  [default: the task's usual one]")
@click.option("--new-head", is_flag=True, help="Replace the head of a model that is for other labels.")
@click.option("--teacher", help="A model for the same task to learn from besides the labels.")
@click.option(
    "--distill",
    type=float,
    default=FinetuneOptions.distill,
    show_default=True,
    help="How much the teacher's answers count, from 0 to 1.",
)
@click.option("--epochs", type=float, default=_RUN.epochs, show_default=True, help="Passes over the data.")
@click.option("--steps", type=int, help="Instead: steps of --batch-size rows.")
@click.option("--learning-rate", type=float, default=_RUN.learning_rate, show_default=True, help="The highest.")
@click.option(
    "--prune-heads", type=float, help="Remove this part of all heads on the way, by gradient; see collab prune."
)
@click.option(
    "--prune-at", type=float, default=0.5, show_default=True, help="After this part of the training, by --prune-heads."
)
@click.option("--dropout", type=float, help="[default: the model's own]")
@training_options
@loading_options
@overwrite_option
@verbosity_options
def finetune(model: str, output: Path, **given: Any) -> None:
    """Train MODEL, original or converted, on a task, and write it to the folder OUTPUT.

    If interrupted, the same command goes on. Runs in several processes under accelerate launch; --batch-size is that of
    all of them together.
    """
    set_up_logging(-1 if given["quiet"] else given["verbose"])
    with failures(INTERRUPTED_TRAINING):
        task = task_named(given["task"], given["metric"])
        run = run_of(given, _RUN, learning_rate=given["learning_rate"], steps=given["steps"], epochs=given["epochs"])
        options = FinetuneOptions(given["max_length"], given["distill"], given["dropout"], run)
        columns = given["text_column"]

        from ..checkpoints.finetune import LabelledData, finetune_checkpoint, finetuning_step  # slow to import
        from ..training.work import WorkOptions, is_main_process

        def source(name: str, split: str) -> DataSource | None:
            return None if given[name] is None else DataSource(given[name], columns, given["subset"], given[split])

        labels = tuple(given["labels"].split(",")) if given["labels"] else ()
        data = LabelledData(
            source("train", "train_split"),
            source("held_back", "eval_split"),
            given["label_column"],
            labels,
            given["samples"],
        )
        train: Callable[..., dict[str, Any]] = finetune_checkpoint
        if given["prune_heads"] is not None:
            from ..checkpoints.finetune_and_prune import MidwayPruning, finetune_and_prune_checkpoint
            from ..heads.selection import PruneOptions

            chosen = PruneOptions(fraction=given["prune_heads"], seed=run.seed)
            train = partial(finetune_and_prune_checkpoint, pruning=MidwayPruning(chosen, given["prune_at"]))
        with bars(shown=not given["quiet"] and is_main_process()) as progress:
            report = train(
                model,
                output,
                task,
                data,
                options=options,
                teacher=given["teacher"],
                new_head=given["new_head"],
                reading=loading_of(given),
                writing=WorkOptions(given["overwrite"], given["restart"], command_line()),
                on_step=progress.step,
            )
    if not is_main_process():
        return
    if given["as_json"]:
        click.echo(json.dumps(report, indent=2))
    elif not given["quiet"]:
        show_step(finetuning_step(report, task), output)
