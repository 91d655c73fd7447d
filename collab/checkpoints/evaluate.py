"""Evaluates a model in a folder (`collab evaluate`)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from ..data.examples import read_examples
from ..data.source import DataSource
from ..data.task import Task, task_of
from ..errors import ConfigurationError
from ..evaluation.evaluate import Evaluation
from ..evaluation.evaluate import evaluate as evaluate_model
from ..evaluation.options import EvaluateOptions
from ..io.history import Metric, Step, read_report, table
from ..io.load import Checkpoint, load
from ..io.options import LoadOptions, Progress, no_progress
from ..io.read import read_config, resolve_source


def evaluate(
    model: str,
    source: DataSource | None = None,
    task: Task | None = None,
    *,
    against: str | None = None,
    options: EvaluateOptions | None = None,
    load_options: LoadOptions | None = None,
    progress: Progress = no_progress,
) -> Evaluation:
    """Measures a model in a folder or on the Hub on labelled rows, and a second model on the same rows.

    Args:
        model: folder or Hub id of an original or a converted model.
        source: the rows; None for the task's own, if it has any.
        task: the task; None for that of the model's head.
        against: folder or Hub id of a second model.
        options: rows, and settings of the bootstrap and of the comparison.
        load_options: how to read the models; the revision applies to `model` only.
        progress: called before every phase and after every batch.

    Raises:
        ConfigurationError: if the task is not known, or the models cannot be compared.
        DataError: if the data does not fit the task, or the model has no head for it.
        CheckpointError: if a model cannot be read.
    """
    options = options or EvaluateOptions()
    load_options = load_options or LoadOptions()
    folder = resolve_source(model, load_options.revision).folder
    task = task or task_of(read_config(folder), (folder / "modules.json").is_file())
    source = source or task.held_out
    if source is None:
        raise ConfigurationError(f"{task.kind} has no data of its own; give the rows with --data (source=).")
    progress("reading the rows", 0, None)
    examples = read_examples(source, task, options.label_column, options.samples)
    progress("loading the model", 0, None)
    loaded = _load(model, load_options, task, options)
    second = None if against is None else _load(against, replace(load_options, revision=None), task, options)
    return evaluate_model(loaded, examples, task, against=second, options=options, progress=progress)


def evaluation_step(evaluation: Evaluation, command: str | None = None) -> Step:
    """An evaluation as a section of the card, with its metrics in the model-index.

    Args:
        evaluation: its results.
        command: command line, for the record.
    """
    record = evaluation.record | {"command": command}
    data = record["data"]
    name = data["source"]
    rows = [[metric, _interval(result)] for metric, result in record["metrics"].items()]
    headings = ["", "value (95 % interval)"]
    against = record.get("against")
    if against:
        reference = Path(against["model"]).name
        headings += [reference, "difference"]
        for row, metric in zip(rows, record["metrics"], strict=True):
            row += [_interval(against["metrics"][metric]), _interval(against["difference"][metric], sign=True)]
    text = f"{record['task']} on `{name}` ({data['rows']} rows):\n\n" + table(headings, rows)
    if against:
        agreed = {key: value for key, value in (against["agreement"] or {}).items() if key != "rows"}
        speed = against["tokens_per_second"]
        pairs = [
            *([key.replace("_", " "), f"{value:.4f}"] for key, value in agreed.items()),
            ["cosine of hidden states by layer", " ".join(f"{cosine:.4f}" for cosine in against["hidden_cosine"])],
            ["parameters", "{model:,} of {against:,}".format(**against["parameters"])],
            ["bytes", "{model:,} of {against:,}".format(**against["bytes"])],
            [
                "tokens per second",
                f"{speed['model']:,.0f} against {speed['against']:,.0f}: {speed['ratio']:.2f} times "
                f"({speed['ratio_low']:.2f} to {speed['ratio_high']:.2f})",
            ],
        ]
        text += "\n\n" + table([f"against {reference}", ""], pairs)
    measured = tuple(
        Metric(record["hub_name"], name, metric, result["value"]) for metric, result in record["metrics"].items()
    )
    return Step("Evaluation", text, record, measured)


def check_recordable(folder: Path) -> None:
    """Raises a ConfigurationError if a folder has no report to add an evaluation to."""
    if not read_report(folder):
        raise ConfigurationError(f"{folder} has no report to add the evaluation to. Omit --record.")


def _load(name: str, load_options: LoadOptions, task: Task, options: EvaluateOptions) -> Checkpoint:
    loaded = load(name, load_options, auto_class=task.auto_class)
    if task.head is not None:
        loaded.require_head(task.kind)
    device = torch.device(options.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    loaded.model.to(device)  # type: ignore[arg-type]
    return loaded


def _interval(result: dict[str, float], sign: bool = False) -> str:
    form = "+.4f" if sign else ".4f"
    if result["low"] is None:
        return f"{result['value']:{form}}"
    return f"{result['value']:{form}} ({result['low']:{form}} to {result['high']:{form}})"
