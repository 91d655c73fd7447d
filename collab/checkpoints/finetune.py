"""Fine-tunes a model in a folder into another folder (`collab finetune`).

Training code is imported where it is called, because transformers' `Trainer` is slow to import.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

from ..data.examples import Examples, label_names, read_examples
from ..data.source import LabelledData
from ..data.task import Task
from ..errors import ConfigurationError, DataError
from ..evaluation.compare import check_tokenizers
from ..heads.options import MidwayPruning
from ..io.checkpoint import Checkpoint
from ..io.load import load, load_source
from ..io.options import LoadOptions, SaveOptions, TransformOptions
from ..io.read import Source, read_config, resolve_source
from ..io.staging import check_output
from ..io.unfinished import PRUNED_HALF, PRUNING, WHOLE_HALF, work_folder
from ..processes import from_main
from ..training.options import FinetuneOptions
from ..training.work import Start, exclusive_lock, finish, make_room, open_work, record_start
from .prune import load_to_score, pruned_by
from .transform import Run, transform


def finetune(
    model: str,
    output: str | Path,
    task: Task,
    data: LabelledData,
    *,
    options: FinetuneOptions | None = None,
    teacher: str | None = None,
    pruning: MidwayPruning | None = None,
    **more: Unpack[TransformOptions],
) -> Checkpoint:
    """Fine-tunes a model in a folder or on the Hub into a folder that appears whole or not at all.

    Unfinished work is kept in `OUTPUT.training`, and the same call resumes it. With `pruning`, the best checkpoint of
    the first part of the training is pruned and trained on; all of that is kept in `OUTPUT.pruning`.

    Args:
        model: folder or Hub id of an original or a converted model.
        output: folder to write.
        task: task to train for.
        data: labelled rows; heads are scored on those to train on.
        options: training settings, with `pruning` of both parts together.
        teacher: folder or Hub id of a model for the same task, whose outputs are learned in addition to the labels.
        pruning: which heads to prune, and when; None to prune none.
        **more: see [`TransformOptions`][collab.TransformOptions].

    Returns:
        The trained model as written; `Checkpoint.step` gives its `Finetuning`, with `pruning` of the second part.

    Raises:
        CollabError: as raised by `collab.load`, `collab.read_examples`, `collab.finetune`, `collab.prune` and
            `collab.save`.
    """
    _require_head(task)
    options = options or FinetuneOptions()
    if pruning is None:
        return _train(model, output, task, data, options, teacher, **more)
    load_options, save_options = more.get("load_options") or LoadOptions(), more.get("save_options") or SaveOptions()
    output = Path(output).expanduser()
    source = resolve_source(model, load_options.revision)
    check_output(output, source.folder, save_options.overwrite)
    first, second = (replace(options, run=run) for run in pruning.halves(options.run))
    work = work_folder(output, PRUNING)
    with exclusive_lock(work):
        examples = _read(data, task)
        settings = repr((model, load_options.revision, task, data, pruning, options, teacher, examples))
        fingerprint = from_main(lambda: _fingerprint(settings, source, teacher))
        whole, pruned = work / WHOLE_HALF, work / PRUNED_HALF

        def begin() -> bool:
            start = open_work(work, fingerprint, save_options.restart)
            if not pruned.exists():  # so what is unfinished there is not the second half of this run
                make_room(work_folder(output), save_options.restart)
            if start is None:
                record_start(work, fingerprint, Start({}, 0.0, "float32"))
            return whole.exists() or pruned.exists()

        more["save_options"] = SaveOptions(command=save_options.command)
        if not from_main(begin):
            _train(model, whole, task, data, first, teacher, examples, **more)
        more["load_options"] = replace(load_options, revision=None)
        rows = replace(pruning.options.rows, label_column=data.label_column, max_length=options.max_length)
        which = replace(pruning.options, rows=rows)

        def load_half(half: Source, load_options: LoadOptions) -> Checkpoint:
            return replace(load_to_score(half, load_options, task), source=replace(source, folder=half.folder))

        def prune_once() -> None:
            if not pruned.exists():
                verb = pruned_by(which, data.train or task.train, task)
                transform(str(whole), pruned, [verb], load=load_half, **more)

        from_main(prune_once)
        more["save_options"] = save_options
        trained = _train(str(pruned), output, task, replace(data, new_head=False), second, teacher, examples, **more)
        finish(work)
    return trained


def _fingerprint(settings: str, source: Source, teacher: str | None) -> str:
    """A hash of settings and of the files of the models, for a run with pruning, whose first part is not repeated."""
    digest = hashlib.sha256(settings.encode())
    folders = [source.folder] if teacher is None else [source.folder, resolve_source(teacher, None).folder]
    paths = (path for folder in folders for path in sorted(folder.glob("*.*")))
    for path in (path for path in paths if path.suffix != ".md" and path.is_file()):
        digest.update(path.name.encode())
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def _train(
    model: str,
    output: str | Path,
    task: Task,
    data: LabelledData,
    options: FinetuneOptions,
    teacher: str | None,
    examples: tuple[Examples, Examples] | None = None,
    **more: Unpack[TransformOptions],
) -> Checkpoint:
    """Fine-tunes from folder to folder without pruning, as `finetune` says; None for `examples` to read them."""
    rows: list[tuple[Examples, Examples]] = []

    def load_with_head(source: Source, load_options: LoadOptions) -> Checkpoint:
        rows.append(examples or _read(data, task))
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
            restart=run.save_options.restart,
            progress=run.progress,
        )

    return transform(model, output, [train], load=load_with_head, trains=True, **more)


def _read(data: LabelledData, task: Task) -> tuple[Examples, Examples]:
    """Reads the training and the held-out rows.

    Raises:
        ConfigurationError: if a source is not given, and the task has no data of its own.
        DataError: if they cannot be read.
    """
    examples = []
    for source, own, option, samples in (
        (data.train, task.train, "--train (train=)", data.samples),
        (data.held_out, task.held_out, "--eval (held_out=)", None),
    ):
        if source is None and own is None:
            raise ConfigurationError(f"{task.kind} has no data of its own; give the rows with {option}.")
        examples.append(read_examples(source or own, task, data.label_column, samples))  # type: ignore[arg-type]
    return examples[0], examples[1]


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
    if task.kind == "regression" and data.labels:
        raise ConfigurationError("A regression has no classes to name. Leave out labels (--labels).")
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
