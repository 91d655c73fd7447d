"""Fine-tuning a model in a folder into another folder: what `collab finetune` does."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from ..data.examples import Examples, label_names, read_examples
from ..data.source import DataSource
from ..data.task import Task
from ..errors import ConfigurationError, DataError
from ..evaluation.compare import check_tokenizers
from ..io.history import Measured, Step, table
from ..io.load import Loaded, LoadOptions, load
from ..io.read import read_config, resolve_source
from ..io.staging import check_output
from ..io.write import republish
from ..training.finetune import finetune
from ..training.options import FinetuneOptions, OnStep
from ..training.work import WorkOptions, finish, is_main_process, work_folder


@dataclass(frozen=True)
class LabelledData:
    """Labelled rows to learn from and to evaluate on.

    Attributes:
        train: None for the task's own.
        held_back: likewise.
        label_column: of the labels; found by its usual names if None.
        labels: names of the classes, in the order of their numbers; found in the data if empty.
        samples: rows of `train` at most, the first ones; None for all.
    """

    train: DataSource | None = None
    held_back: DataSource | None = None
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
            (self.held_back, task.held_back, "--eval", None),
        ):
            if source is None and own is None:
                raise ConfigurationError(f"Say with {option} where the rows are; {task.kind} has none of its own.")
            found.append(read_examples(source or own, task, self.label_column, samples))  # type: ignore[arg-type]
        return found[0], found[1]


def finetune_checkpoint(
    model: str,
    output: str | Path,
    task: Task,
    data: LabelledData,
    *,
    options: FinetuneOptions | None = None,
    teacher: str | None = None,
    new_head: bool = False,
    reading: LoadOptions | None = None,
    writing: WorkOptions | None = None,
    on_step: OnStep | None = None,
) -> dict[str, Any]:
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
        reading: how to read the model.
        writing: how to treat the output and unfinished work.
        on_step: called after every step.

    Returns:
        The report; see `finetune`.

    Raises:
        CollabError: of the kind that `load`, `read_examples`, `finetune` and `republish` raise.
    """
    if task.head is None:
        raise ConfigurationError(f"A model is not fine-tuned for {task.kind}, which is only measured.")
    options, reading = options or FinetuneOptions(), reading or LoadOptions()
    writing = writing or WorkOptions()
    output = Path(output).expanduser()
    source = resolve_source(model, reading.revision)
    check_output(output, source.folder, writing.overwrite)
    train, held_back = data.read(task)
    loaded = load(
        model,
        reading,
        auto_class=task.auto_class,
        config_changes=_head(task, read_config(source.folder), train, held_back, data.labels, new_head),
        new_head=new_head,
        seed=options.run.seed,
    )
    loaded.model.float()
    report = finetune(
        loaded.model,
        task,
        train,
        held_back,
        tokenizer=loaded.tokenizer,
        options=options,
        teacher=None if teacher is None else _teacher(teacher, task, loaded),
        work=work_folder(output),
        restart=writing.restart,
        on_step=on_step,
    )
    report.update(command=writing.command, teacher=teacher)
    if is_main_process():
        republish(
            loaded.model,
            output,
            loaded.source.folder,
            finetuning_step(report, task),
            overwrite=writing.overwrite,
            trust_remote_code=reading.trust_remote_code,
        )
    finish(work_folder(output))
    return report


def _teacher(name: str, task: Task, loaded: Loaded) -> PreTrainedModel:
    """The model to learn from besides the labels."""
    teacher = load(name, auto_class=task.auto_class)
    teacher.require_head(task.kind)
    check_tokenizers(loaded.processor, teacher.processor)
    return teacher.model


def _head(
    task: Task, config: dict[str, Any], train: Examples, held_back: Examples, given: tuple[str, ...], new_head: bool
) -> dict[str, Any]:
    """What the config must say of a head that fits the labels; nothing if the model's own does."""
    if task.kind == "masked-lm":
        return {}
    names = ["score"] if task.kind == "regression" else label_names([train, held_back], given)
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


def finetuning_step(report: dict[str, Any], task: Task) -> Step:
    """Fine-tuning as a section of the card, with its metrics in the model-index."""
    data, metrics = report["data"], report["metrics"].items()
    train, judged = data["train"], data["eval"]
    rows = [[name, f"{one['value']:.4f}", f"{one['low']:.4f} to {one['high']:.4f}"] for name, one in metrics]
    text = (
        f"Fine-tuned for {task.kind} on `{train}` ({data['rows']} rows) for {report['steps']} steps; the checkpoint of "
        f"step {report['best_step']} had the best {task.best_by} on `{judged}` ({data['eval_rows']} rows):\n\n"
    )
    measured = tuple(Measured(task.hub_name, judged, name, one["value"]) for name, one in metrics)
    return Step("Fine-tuning", text + table(["", "value", "95 % interval"], rows), report, measured)
