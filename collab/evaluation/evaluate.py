"""Measures a model on labelled rows, optionally beside another model."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..data.encoding import encode, to_judge
from ..data.examples import Examples, numbers
from ..data.features import Feature, text_features, without_labels
from ..data.task import Task
from ..errors import DataError
from ..io.load import Checkpoint
from ..io.options import Progress, no_progress
from ..io.report import installed_versions
from .compare import check_comparable, check_tokenizers, compare
from .embedding import Embedder
from .metrics import Columns, intervals
from .options import EvaluateOptions
from .predict import predictions
from .translation import written_ngrams


@dataclass(frozen=True)
class Evaluation:
    """Results of an evaluation.

    Attributes:
        record: all results, as JSON values: ``metrics``, each with its value and bootstrap interval, and for a second
            model ``against`` (see `compare`), with its own ``metrics`` and the ``difference`` on the same draws.
    """

    record: dict[str, Any]

    @property
    def metrics(self) -> dict[str, dict[str, float]]:
        """By name: ``value``, ``low`` and ``high``."""
        return self.record["metrics"]


def evaluate(
    model: Checkpoint,
    examples: Examples,
    task: Task,
    *,
    against: Checkpoint | None = None,
    options: EvaluateOptions | None = None,
    progress: Progress = no_progress,
) -> Evaluation:
    """Measures a model on labelled rows, and a second model on the same rows.

    Args:
        model: a checkpoint from `collab.load`, or `Checkpoint.of(model, tokenizer)` for a model in memory; with the
            task's head, on the device to run on.
        examples: the rows (`collab.read_examples`).
        task: the task (`collab.task_named`).
        against: the second model, given like the first.
        options: settings of the bootstrap and of the comparison.
        progress: progress callback, called after every batch.

    Raises:
        ConfigurationError: if the models cannot be compared.
        DataError: if the rows do not fit the task or the head.
    """
    options = options or EvaluateOptions()
    start = time.perf_counter()
    if against is not None:
        check_comparable(model.model, against.model)
        check_tokenizers(model.processor, against.processor)
    columns, features = _predict_examples(model, task, examples, options, progress)
    record: dict[str, Any] = {
        "step": "evaluate",
        "model": model.source.name,
        "task": task.kind,
        "hub_name": task.hub_name,
        "data": {"source": examples.name, "rows": len(examples.texts)},
        "metrics": intervals(task.kind, columns, draws=options.draws, seed=options.seed),
        "versions": installed_versions(),
    }
    if against is not None:
        reference, _ = _predict_examples(against, task, examples, options, progress)
        progress("comparing", 0, None)
        record["against"] = compare(model, against, features, rounds=options.rounds) | {
            "metrics": intervals(task.kind, reference, draws=options.draws, seed=options.seed),
            "difference": intervals(task.kind, columns, reference, draws=options.draws, seed=options.seed),
        }
    record["seconds"] = time.perf_counter() - start
    return Evaluation(record)


def _predict_examples(
    loaded: Checkpoint, task: Task, examples: Examples, options: EvaluateOptions, progress: Progress
) -> tuple[Columns, list[Feature]]:
    """Predictions for all rows, and the rows as features without labels."""
    model, tokenizer = loaded.model, loaded.tokenizer
    if task.kind == "similarity":
        if len(examples.texts[0]) != 2:
            raise DataError("Similarity needs pairs: name two text columns (columns=, --text-column).")
        progress("measuring", 0, None)
        columns = {
            "predicted": Embedder(loaded, options.max_length).similarities(examples.texts),
            "label": np.array(numbers(examples)),
        }
        first = [pair[0] for pair in examples.texts]
        return columns, text_features(model, tokenizer, first, options.max_length)
    encoded = encode(task, examples, model, tokenizer, options.max_length)
    features, collate = to_judge(task, model, tokenizer, encoded, options.seed)
    columns = predictions(task.kind, model, features, collate, progress)
    if task.kind == "translation":
        columns |= written_ngrams(model, tokenizer, examples.texts, options.max_length, progress)
    return columns, without_labels(features)
