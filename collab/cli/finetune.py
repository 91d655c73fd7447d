"""`collab finetune`."""

from __future__ import annotations

from pathlib import Path

import click

from ..data.source import DataSource, LabelledData
from ..data.task import TRAINABLE_KINDS
from ..errors import ConfigurationError
from ..heads.options import MidwayPruning, PruneOptions, RowOptions
from ..training.options import FinetuneOptions
from .command import command, gathers, grouped, once, only_with
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
from .options.model import model_in, model_out
from .options.training import (
    learning_rate_option,
    restart_option,
    teacher_option,
    training_options,
    training_steps_option,
)
from .session import Session

_RUN = FinetuneOptions().run
_OWN = "the task's own"


def _train(train: str | None, text_column: tuple[str, ...], subset: str | None, train_split: str) -> DataSource | None:
    return None if train is None else DataSource(train, text_column, subset, train_split)


def _held_out(
    evaluation: str | None, text_column: tuple[str, ...], subset: str | None, eval_split: str
) -> DataSource | None:
    return None if evaluation is None else DataSource(evaluation, text_column, subset, eval_split)


def _labels(labels: str | None) -> tuple[str, ...]:
    """Names of classes, with commas between them."""
    names = tuple(labels.split(",")) if labels else ()
    if not all(name.strip() for name in names):
        raise ConfigurationError(f"--labels {labels!r} has a class without a name.")
    if len(set(names)) < len(names):
        raise ConfigurationError(f"--labels {labels!r} names a class twice.")
    return names


def _pruning(prune_heads: float | None, prune_at: float, seed: int) -> MidwayPruning | None:
    if prune_heads is None:
        return None
    return MidwayPruning(PruneOptions(heads=prune_heads, rows=RowOptions(seed=seed)), prune_at)


@command(
    "collab finetune converted tuned --task classification --train train.tsv --eval dev.tsv",
    "collab finetune bert-base-uncased tuned --task glue/sst2 --epochs 2",
    "collab finetune bert-base-uncased smaller --task glue/sst2 --prune-heads 0.4 --prune-at 0.5",
    "torchrun --standalone --nproc-per-node 2 -m collab finetune converted tuned --task glue/cola",
    summary="Train a model on the labels of a task.",
)
@task_option(kinds=TRAINABLE_KINDS)
@click.option("--metric", show_default="the task's usual one", help="Metric that selects the best checkpoint.")
@gathers("data", LabelledData)
@gathers("train", _train)
@gathers("held_out", _held_out)
@gathers("labels", _labels)
@once(click.option("--train", show_default=_OWN, help=f"Labelled rows to learn from: {LABELLED}."))
@once(
    click.option(
        "--eval", "evaluation", show_default=_OWN, help=f"Labelled rows to choose the best checkpoint by: {LABELLED}."
    )
)
@only_with(("train", "evaluation"), text_column_option, subset_option())
@only_with("train", split_option("--train-split", "train_split"))
@only_with("evaluation", split_option("--eval-split", "eval_split", "validation"))
@label_column_option
@grouped(
    "Data", click.option("--labels", help="Names of the classes in the order of their numbers: negative,positive.")
)
@samples_option(None)
@grouped("Data", click.option("--new-head", is_flag=True, help="Replace the head of a model that is for other labels."))
@teacher_option("the labels alone")
@gathers("options", FinetuneOptions)
@gathers("pruning", _pruning)
@grouped(
    "Training",
    only_with(
        "teacher",
        click.option(
            "--distill", default=FinetuneOptions.distill, help="How much the teacher's answers count, from 0 to 1."
        ),
    ),
)
@click.option("--epochs", default=_RUN.epochs, help="Passes over the data, if --steps is not given.")
@training_steps_option(None)
@learning_rate_option(_RUN.learning_rate)
@grouped(
    "Pruning",
    click.option(
        "--prune-heads", type=float, help="Remove this part of all heads on the way, by gradient; see collab prune."
    ),
    only_with(
        "prune_heads",
        click.option("--prune-at", default=MidwayPruning.at, help="After this part of the training, by --prune-heads."),
    ),
)
@grouped(
    "Training", click.option("--dropout", type=float, show_default="the model's own", help="Every dropout probability.")
)
@training_options(_RUN)
@max_length_option
@restart_option
@model_in
@model_out
def finetune(output: Path, session: Session) -> None:
    """Train MODEL, original or converted, on a task, and write it to the folder OUTPUT.

    If interrupted, the same command goes on. Runs in several processes under torchrun; --batch-size is that of
    all of them together.
    """
    session.begin(trains=True, divides=True)
    from ..checkpoints.finetune import finetune as finetune_checkpoint
    from ..steps.training import Finetuning
    from .outcome import finish

    tuned = session.call(finetune_checkpoint)
    finish(session, tuned, Finetuning, ["collab", "evaluate", str(output), "--data", "labelled.tsv"])
