"""Fine-tunes a model in a folder into another folder (`collab finetune`).

Training code is imported where it is called, because transformers' `Trainer` is slow to import.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from ..data.examples import Examples, label_names, read_examples
from ..data.source import DataSource
from ..data.task import Task
from ..errors import ConfigurationError, DataError
from ..evaluation.compare import check_tokenizers
from ..heads.options import PruneOptions
from ..io.checkpoint import Checkpoint
from ..io.load import load, load_source
from ..io.options import LoadOptions, SaveOptions
from ..io.read import Source, read_config, resolve_source
from ..io.staging import check_output
from ..processes import is_main_process
from ..progress import Progress, no_progress
from ..training.options import FinetuneOptions, RunOptions
from ..training.work import Start, exclusive_lock, finish, open_work, record_start, wait_for_everyone, work_folder
from .prune import prune
from .transform import Run, transform


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

    def read(self, task: Task) -> tuple[Examples, Examples]:
        """Reads the training and the held-out rows.

        Raises:
            ConfigurationError: if a source is not given, and the task has no data of its own.
            DataError: if they cannot be read.
        """
        examples = []
        for source, own, option, samples in (
            (self.train, task.train, "--train (train=)", self.samples),
            (self.held_out, task.held_out, "--eval (held_out=)", None),
        ):
            if source is None and own is None:
                raise ConfigurationError(f"{task.kind} has no data of its own; give the rows with {option}.")
            examples.append(read_examples(source or own, task, self.label_column, samples))  # type: ignore[arg-type]
        return examples[0], examples[1]


def finetune(
    model: str,
    output: str | Path,
    task: Task,
    data: LabelledData,
    *,
    options: FinetuneOptions | None = None,
    teacher: str | None = None,
    load_options: LoadOptions | None = None,
    save_options: SaveOptions | None = None,
    progress: Progress = no_progress,
) -> Checkpoint:
    """Fine-tunes a model in a folder or on the Hub into a folder that appears whole or not at all.

    Unfinished work is kept in `OUTPUT.training`, and the same call resumes it.

    Args:
        model: folder or Hub id of an original or a converted model.
        output: folder to write.
        task: task to train for.
        data: labelled rows.
        options: training settings.
        teacher: folder or Hub id of a model for the same task, whose outputs are learned in addition to the labels.
        load_options: how to read the model.
        save_options: how to write the result, and whether to resume unfinished work.
        progress: called after every step.

    Returns:
        The trained model as written; `Checkpoint.step` gives its `Finetuning`.

    Raises:
        CollabError: as raised by `collab.load`, `collab.read_examples`, `collab.finetune` and `collab.save`.
    """
    _require_head(task)
    options = options or FinetuneOptions()
    rows: list[tuple[Examples, Examples]] = []

    def load_with_head(source: Source, load_options: LoadOptions) -> Checkpoint:
        rows.append(data.read(task))
        head, seed = _head(task, read_config(source.folder), rows[0], data), options.run.seed
        loaded = load_source(
            source, load_options, auto_class=task.auto_class, config_changes=head, new_head=data.new_head, seed=seed
        )
        loaded.model.float()
        return loaded

    def train(checkpoint: Checkpoint, run: Run) -> Checkpoint:
        from ..training.finetune import finetune as finetune_model

        return finetune_model(
            checkpoint,
            task,
            *rows[0],
            options=options,
            teacher=_teacher(teacher, task, checkpoint),
            work=run.work,
            restart=run.restart,
            progress=run.progress,
        )

    return transform(
        model,
        output,
        [train],
        load=load_with_head,
        trains=True,
        load_options=load_options,
        save_options=save_options,
        progress=progress,
    )


def _require_head(task: Task) -> None:
    """Raises a ConfigurationError for a task that models have no head for."""
    if task.head is None:
        raise ConfigurationError(f"Models cannot be fine-tuned for {task.kind}, only measured.")


def _teacher(name: str | None, task: Task, loaded: Checkpoint) -> Checkpoint | None:
    """The model whose outputs are learned in addition to the labels; None for none."""
    if name is None:
        return None
    teacher = load(name, auto_class=task.auto_class)
    teacher.require_head(task.kind)
    check_tokenizers(loaded.processor, teacher.processor)
    return teacher


def _head(
    task: Task, config: dict[str, Any], examples: tuple[Examples, Examples], data: LabelledData
) -> dict[str, Any]:
    """Changes of the config for a head that fits the labels."""
    if task.kind in ("masked-lm", "translation"):
        return {}
    names = ["score"] if task.kind == "regression" else label_names(examples, data.labels)
    existing = config.get("id2label") or {"0": "LABEL_0", "1": "LABEL_1"}
    own = (config.get("architectures") or [""])[0].endswith((task.head or "").removeprefix("AutoModel"))
    if own and not data.new_head and len(existing) != len(names):
        raise DataError(
            f"The data has {len(names)} labels ({', '.join(names[:5])}), and the model's head {len(existing)}: "
            f"{', '.join(map(str, existing.values()))}. Train a new head with --new-head (new_head=)."
        )
    kind = {"regression": "regression", "classification": "single_label_classification"}.get(task.kind)
    if own and not data.new_head and not data.labels:
        return {"problem_type": kind}
    _check_tags(task, names)
    return {
        "id2label": dict(enumerate(names)),
        "label2id": {name: number for number, name in enumerate(names)},
        "problem_type": kind,
    }


def _check_tags(task: Task, names: list[str]) -> None:
    """Checks that tags mark the beginnings of entities, which entity metrics need."""
    tagged = all(name == "O" or name[:2] in ("B-", "I-", "E-", "S-", "L-", "U-") for name in names)
    if task.kind == "token-classification" and task.best_by != "accuracy" and not tagged:
        raise DataError(
            f"The tags {', '.join(names[:5])} do not say where an entity begins (B-, I-, O), so {task.best_by} "
            "cannot be computed. Name them with --labels (labels=), or choose the metric accuracy (--metric)."
        )


@dataclass(frozen=True)
class MidwayPruning:
    """Pruning in the middle of fine-tuning.

    Attributes:
        options: which heads to prune, by scores on the labelled training rows.
        at: fraction of the training before pruning, in (0, 1).

    Raises:
        ConfigurationError: if `at` is not between 0 and 1.
    """

    options: PruneOptions
    at: float = 0.5

    def __post_init__(self) -> None:
        if not 0 < self.at < 1:
            raise ConfigurationError(
                f"Pruning must come after a fraction of the training between 0 and 1, not {self.at}. To prune before "
                "or after training, use collab prune."
            )

    def halves(self, run: RunOptions) -> tuple[RunOptions, RunOptions]:
        """Settings of the training before and after pruning, each with its own learning-rate schedule."""
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


def finetune_and_prune(
    model: str,
    output: str | Path,
    task: Task,
    data: LabelledData,
    pruning: MidwayPruning,
    *,
    options: FinetuneOptions | None = None,
    teacher: str | None = None,
    load_options: LoadOptions | None = None,
    save_options: SaveOptions | None = None,
    progress: Progress = no_progress,
) -> Checkpoint:
    """Fine-tunes a model, prunes its best checkpoint and fine-tunes on; the output appears whole or not at all.

    Unfinished work, including the models before and after pruning, is kept in `OUTPUT.pruning`, and the same call
    resumes it.

    Args:
        model: folder or Hub id of an original or a converted model.
        output: folder to write.
        task: task to train for.
        data: labelled rows; heads are scored on those to train on.
        pruning: which heads to prune, and when.
        options: training settings of both parts together.
        teacher: folder or Hub id of a model for the same task, whose outputs are learned in addition to the labels.
        load_options: how to read the model.
        save_options: how to write the result, and whether to resume unfinished work.
        progress: called after every step.

    Returns:
        The trained model as written, with the `Finetuning` of the second part.

    Raises:
        CollabError: as raised by `finetune` and `prune`.
    """
    options, load_options = options or FinetuneOptions(), load_options or LoadOptions()
    save_options = save_options or SaveOptions()
    output = Path(output).expanduser()
    check_output(output, resolve_source(model, load_options.revision).folder, save_options.overwrite)
    first, second = (replace(options, run=run) for run in pruning.halves(options.run))
    work = work_folder(output, "pruning")
    with exclusive_lock(work):
        fingerprint = repr((model, load_options.revision, task, data, pruning, options, teacher))
        if open_work(work, fingerprint, save_options.restart) is None and is_main_process():
            record_start(work, fingerprint, Start({}, 0.0))
        here = replace(load_options, revision=None)
        inside = SaveOptions(command=save_options.command)
        whole, pruned = work / "whole", work / "pruned"
        train = partial(finetune, task=task, teacher=teacher, progress=progress)
        if not (whole.exists() or pruned.exists()):
            train(model, whole, data=data, options=first, load_options=load_options, save_options=inside)
        if not pruned.exists() and is_main_process():
            rows = replace(pruning.options.rows, label_column=data.label_column)
            prune(
                str(whole),
                pruned,
                replace(pruning.options, rows=rows),
                data=data.train or task.train,
                task=task,
                load_options=here,
                save_options=inside,
                progress=progress,
            )
        wait_for_everyone()  # for the process that prunes
        data, last = replace(data, new_head=False), replace(save_options, restart=False)
        finetuning = train(str(pruned), output, data=data, options=second, load_options=here, save_options=last)
        finish(work)
    return finetuning
