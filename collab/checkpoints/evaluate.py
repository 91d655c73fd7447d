"""Evaluating a model in a folder: what `collab evaluate` does."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..data.encoding import encode, to_judge, without_labels
from ..data.examples import Examples, numbers, read_examples
from ..data.features import Feature, text_features
from ..data.source import DataSource
from ..data.task import Task, task_of
from ..errors import ConfigurationError, DataError
from ..evaluation.compare import check_comparable, check_tokenizers, compare
from ..evaluation.embedding import Embedder
from ..evaluation.metrics import Columns, intervals
from ..evaluation.predict import predict
from ..io.history import Measured, Step, read_report, table
from ..io.load import Loaded, LoadOptions, load
from ..io.read import read_config, resolve_source
from ..io.report import installed_versions
from ..models.inputs import check_length


@dataclass(frozen=True)
class EvaluateOptions:
    """How to evaluate.

    Attributes:
        max_length: tokens of a row at most; None for as many as the model takes.
        samples: rows at most, the first ones; None for all.
        draws: of the bootstrap; 0 for no intervals.
        repeats: rounds of the comparison of speed.
        device: ``cpu``, or None for a GPU where there is one.
        seed: of the bootstrap and of masked tokens.

    Raises:
        ConfigurationError: if a value cannot be used.
    """

    max_length: int | None = None
    samples: int | None = None
    draws: int = 1000
    repeats: int = 3
    device: str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.draws < 0 or self.repeats < 1 or (self.samples is not None and self.samples < 1):
            raise ConfigurationError("draws must be at least 0, and repeats and samples at least 1.")
        check_length(self.max_length)


def evaluate(
    model: str,
    source: DataSource | None = None,
    task: Task | None = None,
    *,
    label_column: str | None = None,
    against: str | None = None,
    options: EvaluateOptions | None = None,
    reading: LoadOptions | None = None,
    command: str | None = None,
) -> dict[str, Any]:
    """Measures a model on labelled rows, and beside another on the same rows.

    Args:
        model: a folder or a Hub id, of an original or a converted model.
        source: the rows; None for those of the task, if it has its own.
        task: what they are for; None for what the model's head is for.
        label_column: of the labels; found by its usual names if None.
        against: a folder or Hub id of another model.
        options: how.
        reading: how to read the model; of `against`, its revision does not count.
        command: the command line, for the report.

    Returns:
        ``metrics``, each with its value and bootstrap interval, and with another model ``against``: see `compare`, with
        its own ``metrics`` and the ``difference`` of both on the same draws.

    Raises:
        ConfigurationError: if the task is not clear, or the models cannot be compared.
        DataError: if the data does not fit task or head.
        CheckpointError: if a model cannot be read, or has no head for the task.
    """
    options = options or EvaluateOptions()
    start = time.perf_counter()
    reading = reading or LoadOptions()
    folder = resolve_source(model, reading.revision).folder
    task = task or task_of(read_config(folder), (folder / "modules.json").is_file())
    source = source or task.held_back
    if source is None:
        raise ConfigurationError(f"Say with --data where the rows are; {task.kind} has none of its own.")
    examples = read_examples(source, task, label_column, options.samples)
    loaded = _load(model, reading, task, options)
    other = None if against is None else _load(against, replace(reading, revision=None), task, options)
    if other is not None:
        check_comparable(loaded.model, other.model)
        check_tokenizers(loaded.processor, other.processor)
    columns, features = _predictions(loaded, task, examples, options)
    report: dict[str, Any] = {
        "step": "evaluate",
        "model": model,
        "task": task.kind,
        "hub_name": task.hub_name,
        "data": {"source": examples.name, "rows": len(examples.texts)},
        "metrics": intervals(task.kind, columns, draws=options.draws, seed=options.seed),
        "command": command,
        "versions": installed_versions(),
    }
    if other is not None:
        theirs, _ = _predictions(other, task, examples, options)
        report["against"] = compare(loaded, other, features, repeats=options.repeats) | {
            "metrics": intervals(task.kind, theirs, draws=options.draws, seed=options.seed),
            "difference": intervals(task.kind, columns, theirs, draws=options.draws, seed=options.seed),
        }
    report["seconds"] = time.perf_counter() - start
    return report


def evaluation_step(report: dict[str, Any]) -> Step:
    """An evaluation as a section of the card, with its metrics in the model-index."""
    data = report["data"]
    name = data["source"]
    rows = [[f"{metric}", _interval(one)] for metric, one in report["metrics"].items()]
    headings = ["", "value (95 % interval)"]
    against = report.get("against")
    if against:
        other = Path(against["model"]).name
        headings += [other, "difference"]
        for row, metric in zip(rows, report["metrics"], strict=True):
            row += [_interval(against["metrics"][metric]), _interval(against["difference"][metric], sign=True)]
    text = f"{report['task']} on `{name}` ({data['rows']} rows):\n\n" + table(headings, rows)
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
        Measured(report["hub_name"], name, metric, one["value"]) for metric, one in report["metrics"].items()
    )
    return Step("Evaluation", text, report, measured)


def check_recordable(folder: Path) -> None:
    """Makes sure that a folder has a report of collab's to add an evaluation to; ConfigurationError if not."""
    if not read_report(folder):
        raise ConfigurationError(f"{folder} has no report of collab's to add to. Leave --record away.")


def _load(name: str, reading: LoadOptions, task: Task, options: EvaluateOptions) -> Loaded:
    loaded = load(name, reading, auto_class=task.auto_class)
    if task.head is not None:
        loaded.require_head(task.kind)
    device = torch.device(options.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    loaded.model.to(device)  # type: ignore[arg-type]
    return loaded


def _predictions(
    loaded: Loaded, task: Task, examples: Examples, options: EvaluateOptions
) -> tuple[Columns, list[Feature]]:
    """Predictions of all rows, and the rows as features without labels."""
    model, tokenizer = loaded.model, loaded.tokenizer
    if task.kind == "similarity":
        if len(examples.texts[0]) != 2:
            raise DataError("Similarity is of pairs: name two text columns.")
        columns = {
            "predicted": Embedder(loaded, options.max_length).similarities(examples.texts),
            "label": np.array(numbers(examples)),
        }
        first = [pair[0] for pair in examples.texts]
        return columns, text_features(model, tokenizer, first, options.max_length)
    encoded = encode(task, examples, model, tokenizer, options.max_length)
    features, collate = to_judge(task, model, tokenizer, encoded, options.seed)
    return predict(task.kind, model, features, collate), without_labels(features)


def _interval(one: dict[str, float], sign: bool = False) -> str:
    form = "+.4f" if sign else ".4f"
    if one["low"] is None:
        return f"{one['value']:{form}}"
    return f"{one['value']:{form}} ({one['low']:{form}} to {one['high']:{form}})"
