"""Evaluates a model in a folder (`collab evaluate`)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ..data.examples import read_examples
from ..data.source import DataSource
from ..data.task import Task, task_of
from ..device import resolve_device
from ..errors import ConfigurationError
from ..evaluation.evaluate import evaluate as evaluate_model
from ..evaluation.options import EvaluateOptions
from ..graphs.served import find_graph, load_graph
from ..io.checkpoint import Checkpoint
from ..io.failures import writing
from ..io.history import read_history
from ..io.load import load_source
from ..io.options import LoadOptions
from ..io.read import Source, read_config, resolve_source
from ..io.staging import try_writing
from ..progress import Progress, no_progress


def evaluate(
    model: str,
    source: DataSource | None = None,
    task: Task | None = None,
    *,
    against: str | None = None,
    options: EvaluateOptions | None = None,
    load_options: LoadOptions | None = None,
    progress: Progress = no_progress,
) -> Checkpoint:
    """Measures a model in a folder or on the Hub on labelled rows, and a second model on the same rows.

    Args:
        model: folder or Hub id of an original or a converted model, or a folder that `collab export` wrote.
        source: the rows; None for the task's own, if it has any.
        task: the task; None for that of the model's head.
        against: folder or Hub id of a second model.
        options: rows, and settings of the bootstrap and of the comparison.
        load_options: how to read the models; the revision applies to `model` only.
        progress: called before every phase and after every batch.

    Returns:
        The model, with an `Evaluation` as its report.

    Raises:
        ConfigurationError: if the task is not known.
        DataError: if the data does not fit the task, or the model has no head for it.
        CheckpointError: if a model cannot be read.
    """
    options = options or EvaluateOptions()
    load_options = load_options or LoadOptions()
    found, graph = _find(model, load_options.revision)
    task = task or task_of(read_config(found.folder), (found.folder / "modules.json").is_file())
    source = source or task.held_out
    if source is None:
        raise ConfigurationError(f"{task.kind} has no data of its own; give the rows with --data (source=).")
    other = None if against is None else _find(against)
    if graph is not None or (other is not None and other[1] is not None):
        if options.device not in (None, "cpu"):
            raise ConfigurationError("Graphs run on the CPU: leave device (--device) out.")
        options = replace(options, device="cpu")
    progress("reading the rows", 0, None)
    examples = read_examples(source, task, options.label_column, options.samples)
    progress("loading the model", 0, None)
    loaded = _load(found, graph, load_options, task, options)
    second = None if other is None else _load(*other, load_options, task, options)
    return evaluate_model(loaded, examples, task, against=second, options=options, progress=progress)


def check_recordable(folder: Path) -> None:
    """Checks that a folder has a report to add an evaluation to.

    Raises:
        ConfigurationError: if it has none.
        OutputError: if nothing can be written to it.
    """
    if not read_history(folder):
        raise ConfigurationError(f"{folder} has no report to add the evaluation to. Omit --record.")
    with writing(f"The record in {folder}", "Omit --record."):
        try_writing(folder)


def _find(name: str, revision: str | None = None) -> tuple[Source, Path | None]:
    """The folder of a model, and the graph in it if it is an exported one."""
    return find_graph(name) or (resolve_source(name, revision), None)


def _load(
    source: Source, graph: Path | None, load_options: LoadOptions, task: Task, options: EvaluateOptions
) -> Checkpoint:
    if graph is not None:
        return load_graph(source, graph, task.auto_class)
    loaded = load_source(source, load_options, auto_class=task.auto_class)
    if task.head is not None:
        loaded.require_head(task.kind)
    loaded.model.to(resolve_device(options.device))  # type: ignore[arg-type]
    return loaded
