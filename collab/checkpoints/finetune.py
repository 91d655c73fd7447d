"""Fine-tuning a model in a folder into another folder: what `collab finetune` does.

What trains is imported where it is called: transformers' `Trainer` is slow to import, and nothing else here needs it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import PreTrainedModel

from ..data.examples import Examples, label_names, read_examples
from ..data.source import DataSource
from ..data.task import Task
from ..errors import ConfigurationError, DataError
from ..evaluation.compare import check_tokenizers
from ..heads.options import PruneOptions
from ..io.history import Metric, Step, table
from ..io.load import Checkpoint, load
from ..io.options import LoadOptions, Progress, SaveOptions, no_progress
from ..io.read import read_config, resolve_source
from ..io.staging import check_output
from ..io.write import save_changed
from ..training.options import FinetuneOptions, RunOptions
from ..training.work import finish, is_main_process, open_work, record_start, wait_for_everyone, work_folder
from .prune import prune

if TYPE_CHECKING:
    from ..training.finetune import Finetuning


@dataclass(frozen=True)
class LabelledData:
    """Labelled rows to learn from and to evaluate on.

    Attributes:
        train: None for the task's own.
        held_out: likewise.
        label_column: of the labels; found by its usual names if None.
        labels: names of the classes, in the order of their numbers; found in the data if empty.
        samples: rows of `train` at most, the first ones; None for all.
    """

    train: DataSource | None = None
    held_out: DataSource | None = None
    label_column: str | None = None
    labels: tuple[str, ...] = ()
    samples: int | None = None

    def read(self, task: Task) -> tuple[Examples, Examples]:
        """Both as examples.

        Raises:
            ConfigurationError: if one is not named, and the task has no data of its own.
            DataError: if they cannot be read.
        """
        found = []
        for source, own, option, samples in (
            (self.train, task.train, "--train", self.samples),
            (self.held_out, task.held_out, "--eval", None),
        ):
            if source is None and own is None:
                raise ConfigurationError(f"Say with {option} where the rows are; {task.kind} has none of its own.")
            found.append(read_examples(source or own, task, self.label_column, samples))  # type: ignore[arg-type]
        return found[0], found[1]


def finetune(
    model: str,
    output: str | Path,
    task: Task,
    data: LabelledData,
    *,
    options: FinetuneOptions | None = None,
    teacher: str | None = None,
    new_head: bool = False,
    load_options: LoadOptions | None = None,
    save_options: SaveOptions | None = None,
    progress: Progress = no_progress,
) -> Finetuning:
    """Fine-tunes a model in a folder, or on the Hub, into a folder that appears whole or not at all.

    Unfinished work is in a folder beside it, called `OUTPUT.training`; the same call goes on from there.

    Args:
        model: a folder or a Hub id, of an original or a converted model.
        output: the folder to write.
        task: what to learn.
        data: the rows.
        options: how.
        teacher: a model for the same task, to learn from besides the labels.
        new_head: replace a head for other labels by a new one.
        load_options: how to read the model.
        save_options: how to write the result, and whether to go on with unfinished work.
        progress: called after every step.

    Returns:
        What was done; see `collab.finetune`.

    Raises:
        CollabError: of the kind that `load`, `read_examples`, `finetune` and `republish` raise.
    """
    if task.head is None:
        raise ConfigurationError(f"A model is not fine-tuned for {task.kind}, which is only measured.")
    from ..training.finetune import finetune as finetune_model

    options, load_options = options or FinetuneOptions(), load_options or LoadOptions()
    save_options = save_options or SaveOptions()
    output = Path(output).expanduser()
    progress("loading the model", 0, None)
    source = resolve_source(model, load_options.revision)
    check_output(output, source.folder, save_options.overwrite)
    train, held_out = data.read(task)
    loaded = load(
        model,
        load_options,
        auto_class=task.auto_class,
        config_changes=_head(task, read_config(source.folder), train, held_out, data.labels, new_head),
        new_head=new_head,
        seed=options.run.seed,
    )
    loaded.model.float()
    finetuning = finetune_model(
        loaded.model,
        task,
        train,
        held_out,
        tokenizer=loaded.tokenizer,
        options=options,
        teacher=None if teacher is None else _teacher(teacher, task, loaded),
        work=work_folder(output),
        restart=save_options.restart,
        progress=progress,
    )
    finetuning.record.update(command=save_options.command, teacher=teacher)
    if is_main_process():
        progress("writing and checking", 0, None)
        save_changed(loaded.model, output, loaded, [finetuning_step(finetuning)], save_options)
    finish(work_folder(output))
    return finetuning


def _teacher(name: str, task: Task, loaded: Checkpoint) -> PreTrainedModel:
    """The model to learn from besides the labels."""
    teacher = load(name, auto_class=task.auto_class)
    teacher.require_head(task.kind)
    check_tokenizers(loaded.processor, teacher.processor)
    return teacher.model


def _head(
    task: Task, config: dict[str, Any], train: Examples, held_out: Examples, given: tuple[str, ...], new_head: bool
) -> dict[str, Any]:
    """What the config must say of a head that fits the labels; nothing if the model's own does."""
    if task.kind == "masked-lm":
        return {}
    names = ["score"] if task.kind == "regression" else label_names([train, held_out], given)
    existing = config.get("id2label") or {"0": "LABEL_0", "1": "LABEL_1"}
    own = (config.get("architectures") or [""])[0].endswith((task.head or "").removeprefix("AutoModel"))
    if own and not new_head and len(existing) != len(names):
        raise DataError(
            f"The data has {len(names)} labels ({', '.join(names[:5])}), and the model's head {len(existing)}: "
            f"{', '.join(map(str, existing.values()))}. Train a new head with --new-head."
        )
    kind = {"regression": "regression", "classification": "single_label_classification"}.get(task.kind)
    if own and not new_head and not given:
        return {"problem_type": kind}
    _check_tags(task, names)
    return {
        "id2label": dict(enumerate(names)),
        "label2id": {name: number for number, name in enumerate(names)},
        "problem_type": kind,
    }


def _check_tags(task: Task, names: list[str]) -> None:
    """Entities can be found only where tags say how they begin."""
    tagged = all(name == "O" or name[:2] in ("B-", "I-", "E-", "S-", "L-", "U-") for name in names)
    if task.kind == "token-classification" and task.best_by != "accuracy" and not tagged:
        raise DataError(
            f"The tags {', '.join(names[:5])} do not say where an entity begins (B-, I-, O), so it cannot be judged by "
            f"{task.best_by}. Name them with --labels, or choose --metric accuracy."
        )


def finetuning_step(finetuning: Finetuning) -> Step:
    """Fine-tuning as a section of the card, with its metrics in the model-index."""
    record, task = finetuning.record, finetuning.task
    data, metrics = record["data"], record["metrics"].items()
    train, judged = data["train"], data["eval"]
    rows = [[name, f"{value['value']:.4f}", f"{value['low']:.4f} to {value['high']:.4f}"] for name, value in metrics]
    text = (
        f"Fine-tuned for {task.kind} on `{train}` ({data['rows']} rows) for {record['steps']} steps; the checkpoint of "
        f"step {record['best_step']} had the best {task.best_by} on `{judged}` ({data['eval_rows']} rows):\n\n"
    )
    measured = tuple(Metric(task.hub_name, judged, name, value["value"]) for name, value in metrics)
    return Step("Fine-tuning", text + table(["", "value", "95 % interval"], rows), record, measured)


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


def finetune_and_prune(
    model: str,
    output: str | Path,
    task: Task,
    data: LabelledData,
    pruning: MidwayPruning,
    *,
    options: FinetuneOptions | None = None,
    teacher: str | None = None,
    new_head: bool = False,
    load_options: LoadOptions | None = None,
    save_options: SaveOptions | None = None,
    progress: Progress = no_progress,
) -> Finetuning:
    """Fine-tunes a model, prunes it, and goes on; the output appears whole or not at all.

    The best checkpoint so far is what is pruned. Unfinished work, the models before and after pruning included, is in a
    folder beside the output, called `OUTPUT.pruning`; the same call goes on from there.

    Args:
        model: a folder or a Hub id, of an original or a converted model.
        output: the folder to write.
        task: what to learn.
        data: the rows; heads are scored on those to learn from.
        pruning: what is pruned, and when.
        options: as in `finetune`, like all that follow.
        teacher: a model for the same task.
        new_head: replace the head.
        load_options: how to read the model.
        save_options: how to write the result, and whether to go on with unfinished work.
        progress: called after every step.

    Returns:
        What the second part of the training did.

    Raises:
        CollabError: of the kind that `finetune` and `prune` raise.
    """
    options, load_options = options or FinetuneOptions(), load_options or LoadOptions()
    save_options = save_options or SaveOptions()
    output = Path(output).expanduser()
    check_output(output, resolve_source(model, load_options.revision).folder, save_options.overwrite)
    first, second = (replace(options, run=run) for run in pruning.halves(options.run))
    work = work_folder(output, "pruning")
    fingerprint = repr((model, load_options.revision, task, data, pruning, options, teacher, new_head))
    if open_work(work, fingerprint, save_options.restart) is None and is_main_process():
        record_start(work, fingerprint, {})
    here = replace(load_options, revision=None)
    inside = SaveOptions(command=save_options.command)
    whole, pruned = work / "whole", work / "pruned"
    if not (whole.exists() or pruned.exists()):
        finetune(
            model,
            whole,
            task,
            data,
            options=first,
            teacher=teacher,
            new_head=new_head,
            load_options=load_options,
            save_options=inside,
            progress=progress,
        )
    if not pruned.exists() and is_main_process():
        prune(
            str(whole),
            pruned,
            pruning.options,
            data=data.train or task.train,
            task=task,
            label_column=data.label_column,
            load_options=here,
            save_options=inside,
            progress=progress,
        )
    wait_for_everyone()  # for the process that prunes
    finetuning = finetune(
        str(pruned),
        output,
        task,
        data,
        options=second,
        teacher=teacher,
        load_options=here,
        save_options=replace(save_options, restart=False),
        progress=progress,
    )
    finish(work)
    return finetuning
