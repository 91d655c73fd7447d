"""Evaluating a model in a folder: what `collab evaluate` does."""

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
    label_column: str | None = None,
    against: str | None = None,
    options: EvaluateOptions | None = None,
    load_options: LoadOptions | None = None,
    command: str | None = None,
    progress: Progress = no_progress,
) -> Evaluation:
    """Measures a model in a folder, or on the Hub, on labelled rows, and beside another on the same rows.

    Args:
        model: a folder or a Hub id, of an original or a converted model.
        source: the rows; None for those of the task, if it has its own.
        task: what they are for; None for what the model's head is for.
        label_column: of the labels; found by its usual names if None.
        against: a folder or Hub id of another model.
        options: settings of the bootstrap and of the comparison.
        load_options: how to read the model; of `against`, its revision does not count.
        command: the command line, for the record.
        progress: called before every phase.

    Raises:
        ConfigurationError: if the task is not clear, or the models cannot be compared.
        DataError: if the data does not fit task or head.
        CheckpointError: if a model cannot be read, or has no head for the task.
    """
    options = options or EvaluateOptions()
    load_options = load_options or LoadOptions()
    folder = resolve_source(model, load_options.revision).folder
    task = task or task_of(read_config(folder), (folder / "modules.json").is_file())
    source = source or task.held_out
    if source is None:
        raise ConfigurationError(f"Say with --data where the rows are; {task.kind} has none of its own.")
    progress("reading the rows", 0, None)
    examples = read_examples(source, task, label_column, options.samples)
    progress("loading the model", 0, None)
    loaded = _load(model, load_options, task, options)
    other = None if against is None else _load(against, replace(load_options, revision=None), task, options)
    progress("measuring", 0, None)
    evaluation = evaluate_model(loaded, examples, task, against=other, options=options)
    evaluation.record["command"] = command
    return evaluation


def evaluation_step(evaluation: Evaluation) -> Step:
    """An evaluation as a section of the card, with its metrics in the model-index."""
    record = evaluation.record
    data = record["data"]
    name = data["source"]
    rows = [[f"{metric}", _interval(one)] for metric, one in record["metrics"].items()]
    headings = ["", "value (95 % interval)"]
    against = record.get("against")
    if against:
        other = Path(against["model"]).name
        headings += [other, "difference"]
        for row, metric in zip(rows, record["metrics"], strict=True):
            row += [_interval(against["metrics"][metric]), _interval(against["difference"][metric], sign=True)]
    text = f"{record['task']} on `{name}` ({data['rows']} rows):\n\n" + table(headings, rows)
    if against:
        agreed = {key: value for key, value in (against["agreement"] or {}).items() if key != "rows"}
        speed = against["tokens_per_second"]
        pairs = [
            *([key.replace("_", " "), f"{value:.4f}"] for key, value in agreed.items()),
            ["cosine of hidden states, layer by layer", " ".join(f"{one:.4f}" for one in against["hidden_cosine"])],
            ["parameters", "{model:,} of {against:,}".format(**against["parameters"])],
            ["bytes", "{model:,} of {against:,}".format(**against["bytes"])],
            [
                "tokens per second",
                f"{speed['model']:,.0f} to {speed['against']:,.0f}: {speed['ratio']:.2f} times "
                f"({speed['ratio_low']:.2f} to {speed['ratio_high']:.2f})",
            ],
        ]
        text += "\n\n" + table([f"against {other}", ""], pairs)
    measured = tuple(
        Metric(record["hub_name"], name, metric, one["value"]) for metric, one in record["metrics"].items()
    )
    return Step("Evaluation", text, record, measured)


def check_recordable(folder: Path) -> None:
    """Makes sure that a folder has a report of collab's to add an evaluation to; ConfigurationError if not."""
    if not read_report(folder):
        raise ConfigurationError(f"{folder} has no report of collab's to add to. Leave --record away.")


def _load(name: str, load_options: LoadOptions, task: Task, options: EvaluateOptions) -> Checkpoint:
    loaded = load(name, load_options, auto_class=task.auto_class)
    if task.head is not None:
        loaded.require_head(task.kind)
    device = torch.device(options.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    loaded.model.to(device)  # type: ignore[arg-type]
    return loaded


def _interval(one: dict[str, float], sign: bool = False) -> str:
    form = "+.4f" if sign else ".4f"
    if one["low"] is None:
        return f"{one['value']:{form}}"
    return f"{one['value']:{form}} ({one['low']:{form}} to {one['high']:{form}})"
