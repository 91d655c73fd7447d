"""Pruning heads in the middle of fine-tuning: `collab finetune --prune-heads`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..data.task import Task
from ..errors import ConfigurationError
from ..heads.selection import PruneOptions
from ..io.load import LoadOptions
from ..io.read import resolve_source
from ..io.staging import check_output
from ..training.options import FinetuneOptions, OnStep, RunOptions
from ..training.work import (
    WorkOptions,
    finish,
    is_main_process,
    open_work,
    record_start,
    wait_for_everyone,
    work_folder,
)
from .finetune import LabelledData, finetune_checkpoint
from .prune import prune_checkpoint


@dataclass(frozen=True)
class MidwayPruning:
    """What is pruned, and when.

    Attributes:
        options: which heads, by scores on the labelled training rows.
        at: after which part of the training, in (0, 1).

    Raises:
        ConfigurationError: if `at` is not between 0 and 1.
    """

    options: PruneOptions
    at: float = 0.5

    def __post_init__(self) -> None:
        if not 0 < self.at < 1:
            raise ConfigurationError(
                f"Heads go after a part of the training between 0 and 1, not {self.at}. To prune before or after it, "
                "use collab prune."
            )

    def halves(self, run: RunOptions) -> tuple[RunOptions, RunOptions]:
        """The training before and after, each with a warm-up and an end of its own."""
        before = after = None
        if run.steps is not None:
            before = round(run.steps * self.at)
            after = run.steps - before
            if not before or not after:
                raise ConfigurationError(f"{self.at} of {run.steps} steps leaves no step before or after pruning.")
        first, second = (
            replace(run, steps=steps, epochs=run.epochs * part, evaluations=max(1, round(run.evaluations * part)))
            for part, steps in ((self.at, before), (1 - self.at, after))
        )
        return first, second


def finetune_and_prune_checkpoint(
    model: str,
    output: str | Path,
    task: Task,
    data: LabelledData,
    pruning: MidwayPruning,
    *,
    options: FinetuneOptions | None = None,
    teacher: str | None = None,
    new_head: bool = False,
    reading: LoadOptions | None = None,
    writing: WorkOptions | None = None,
    on_step: OnStep | None = None,
) -> dict[str, Any]:
    """Fine-tunes a model, prunes it, and goes on; the output appears whole or not at all.

    The best checkpoint so far is what is pruned. Unfinished work, the models before and after pruning included, is in a
    folder beside the output, called `OUTPUT.pruning`; the same call goes on from there.

    Args:
        model: a folder or a Hub id, of an original or a converted model.
        output: the folder to write.
        task: what to learn.
        data: the rows; heads are scored on those to learn from.
        pruning: what is pruned, and when.
        options: as in `finetune_checkpoint`, like all that follow.
        teacher: a model for the same task.
        new_head: replace the head.
        reading: how to read the model.
        writing: how to treat the output.
        on_step: called after every step.

    Returns:
        The report of the second part of the training.

    Raises:
        CollabError: of the kind that `finetune_checkpoint` and `prune_checkpoint` raise.
    """
    options, reading = options or FinetuneOptions(), reading or LoadOptions()
    writing = writing or WorkOptions()
    output = Path(output).expanduser()
    check_output(output, resolve_source(model, reading.revision).folder, writing.overwrite)
    first, second = (replace(options, run=run) for run in pruning.halves(options.run))
    work = work_folder(output, "pruning")
    fingerprint = repr((model, reading.revision, task, data, pruning, options, teacher, new_head))
    if open_work(work, fingerprint, writing.restart) is None and is_main_process():
        record_start(work, fingerprint, {})
    here = replace(reading, revision=None)
    inside = WorkOptions(command=writing.command)
    whole, pruned = work / "whole", work / "pruned"
    if not (whole.exists() or pruned.exists()):
        finetune_checkpoint(
            model,
            whole,
            task,
            data,
            options=first,
            teacher=teacher,
            new_head=new_head,
            reading=reading,
            writing=inside,
            on_step=on_step,
        )
    if not pruned.exists() and is_main_process():
        prune_checkpoint(
            str(whole),
            pruned,
            pruning.options,
            data=data.train or task.train,
            task=task,
            label_column=data.label_column,
            reading=here,
            command=writing.command,
        )
    wait_for_everyone()  # for the process that prunes
    report = finetune_checkpoint(
        str(pruned),
        output,
        task,
        data,
        options=second,
        teacher=teacher,
        reading=here,
        writing=replace(writing, restart=False),
        on_step=on_step,
    )
    finish(work)
    return report
