"""`collab finetune`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..data.source import DataSource
from ..data.task import TRAINABLE_KINDS, Task
from ..errors import ConfigurationError
from ..heads.options import PruneOptions, RowOptions
from ..io.options import LoadOptions, SaveOptions
from ..training.options import FinetuneOptions
from .command import command, gathers
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
from .session import INTERRUPTED_TRAINING, Session

if TYPE_CHECKING:
    from ..checkpoints.finetune import LabelledData

_RUN = FinetuneOptions().run
_OWN = "the task's own"


@dataclass(frozen=True)
class _Data:
    """The options on the rows, each in a field of its name."""

    train: str | None
    evaluation: str | None
    text_column: tuple[str, ...]
    subset: str | None
    train_split: str
    eval_split: str
    label_column: str | None
    labels: str | None
    samples: int | None
    new_head: bool

    def labelled(self) -> LabelledData:
        """The rows to learn from and to evaluate on."""
        from ..checkpoints.finetune import LabelledData  # slow to import

        labels = tuple(self.labels.split(",")) if self.labels else ()
        if not all(label.strip() for label in labels):
            raise ConfigurationError(f"--labels {self.labels!r} has a class without a name.")
        if len(set(labels)) < len(labels):
            raise ConfigurationError(f"--labels {self.labels!r} names a class twice.")
        train, held_out = (
            None if name is None else DataSource(name, self.text_column, self.subset, split)
            for name, split in ((self.train, self.train_split), (self.evaluation, self.eval_split))
        )
        return LabelledData(train, held_out, self.label_column, labels, self.samples, self.new_head)


@command(
    "collab finetune converted tuned --task classification --train train.tsv --eval dev.tsv",
    "collab finetune bert-base-uncased tuned --task glue/sst2 --epochs 2",
    "collab finetune bert-base-uncased smaller --task glue/sst2 --prune-heads 0.4 --prune-at 0.5",
    "accelerate launch --num_processes 2 -m collab finetune converted tuned --task glue/cola",
)
@task_option(kinds=TRAINABLE_KINDS)
@click.option("--metric", show_default="the task's usual one", help="Metric that selects the best checkpoint.")
@gathers("data", _Data)
@click.option("--train", show_default=_OWN, help=f"Labelled rows to learn from: {LABELLED}.")
@click.option(
    "--eval", "evaluation", show_default=_OWN, help=f"Labelled rows to choose the best checkpoint by: {LABELLED}."
)
@text_column_option
@subset_option
@split_option("--train-split")
@split_option("--eval-split", "validation")
@label_column_option
@click.option("--labels", help="Names of the classes in the order of their numbers: negative,positive.")
@samples_option(None)
@click.option("--new-head", is_flag=True, help="Replace the head of a model that is for other labels.")
@teacher_option("the labels alone")
@gathers("options", FinetuneOptions)
@click.option("--distill", default=FinetuneOptions.distill, help="How much the teacher's answers count, from 0 to 1.")
@click.option("--epochs", default=_RUN.epochs, help="Passes over the data, if --steps is not given.")
@training_steps_option(None)
@learning_rate_option(_RUN.learning_rate)
@click.option(
    "--prune-heads", type=float, help="Remove this part of all heads on the way, by gradient; see collab prune."
)
@click.option("--prune-at", default=0.5, help="After this part of the training, by --prune-heads.")
@click.option("--dropout", type=float, show_default="the model's own", help="Every dropout probability.")
@training_options(_RUN)
@max_length_option
@restart_option
@model_in
@model_out
def finetune(
    model: str,
    output: Path,
    *,
    task: Task,
    data: _Data,
    options: FinetuneOptions,
    teacher: str | None,
    prune_heads: float | None,
    prune_at: float,
    load_options: LoadOptions,
    save_options: SaveOptions,
    session: Session,
) -> None:
    """Train MODEL, original or converted, on a task, and write it to the folder OUTPUT.

    If interrupted, the same command goes on. Runs in several processes under accelerate launch; --batch-size is that of
    all of them together.
    """
    session.interrupted = INTERRUPTED_TRAINING
    pruned = None if prune_heads is None else PruneOptions(heads=prune_heads, rows=RowOptions(seed=options.run.seed))
    session.begin(model)
    from ..checkpoints.finetune import MidwayPruning, finetune_and_prune
    from ..checkpoints.finetune import finetune as finetune_checkpoint
    from ..steps.training import Finetuning
    from .outcome import finish

    train = finetune_checkpoint
    if pruned is not None:
        train = partial(finetune_and_prune, pruning=MidwayPruning(pruned, prune_at))
    tuned = train(
        model,
        output,
        task,
        data.labelled(),
        options=options,
        teacher=teacher,
        load_options=load_options,
        save_options=save_options,
        progress=session.progress,
    )
    finish(session, tuned, Finetuning, output=output, following=[f"collab convert {output} smaller --rank 0.25"])
