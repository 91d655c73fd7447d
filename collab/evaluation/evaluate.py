"""Measures a model on labelled rows, optionally beside another model."""

from __future__ import annotations

import time

import numpy as np

from ..data.batches import Feature, without_labels
from ..data.encoding import encode, examples_summary, prepare_eval
from ..data.examples import Examples, numbers
from ..data.features import text_features
from ..data.task import Task
from ..errors import DataError
from ..graphs.served import runtime_of
from ..io.checkpoint import Checkpoint
from ..processes import divided, from_main
from ..progress import Progress, no_progress
from ..steps.measurement import Evaluation
from .compare import are_alike, compare
from .embedding import Embedder
from .metrics import Columns, intervals
from .options import EvaluateOptions
from .predict import predictions
from .translation import written_ngrams


def evaluate(
    checkpoint: Checkpoint,
    examples: Examples,
    task: Task,
    *,
    against: Checkpoint | None = None,
    options: EvaluateOptions | None = None,
    progress: Progress = no_progress,
) -> Checkpoint:
    """Measures a model on labelled rows, and a second model on the same rows. Several processes divide the rows.

    Args:
        checkpoint: the model with the task's head, on the device to run on, and its tokenizer.
        examples: the rows (`collab.read_examples`).
        task: the task (`collab.task_named`).
        against: the second model, given like the first. Of one that the first was not made from, nor made from the
            same, answers and states are not compared.
        options: settings of the bootstrap and of the comparison.
        progress: progress callback, called after every batch.

    Returns:
        The checkpoint, with an `Evaluation` as its report.

    Raises:
        DataError: if the rows do not fit the task or the head.
    """
    options = options or EvaluateOptions()
    start = time.perf_counter()
    columns, features = _predict_examples(checkpoint, task, examples, options, progress)

    def measured(*predicted: Columns) -> dict[str, dict[str, float]]:
        return intervals(task.kind, *predicted, draws=options.draws, seed=options.seed)

    compared = None
    if against is not None:
        reference, read = _predict_examples(against, task, examples, options, progress)
        others = None if are_alike(checkpoint, against) else read
        progress("comparing", 0, None)
        compared = from_main(lambda: compare(checkpoint, against, features, others, rounds=options.rounds)) | {
            "metrics": measured(reference),
            "difference": measured(columns, reference),
        }
    runtime, dtype = runtime_of(checkpoint.model)
    report = Evaluation(
        model=checkpoint.name,
        task=task.kind,
        hub_name=task.hub_name,
        data=examples_summary(task, examples),
        metrics=measured(columns),
        seconds=time.perf_counter() - start,
        against=compared,
        runtime=runtime,
        dtype=dtype,
    )
    return checkpoint.then(report)


def _predict_examples(
    loaded: Checkpoint, task: Task, examples: Examples, options: EvaluateOptions, progress: Progress
) -> tuple[Columns, list[Feature]]:
    """Predictions for all rows, and the rows as features without labels."""
    model, tokenizer = loaded.model, loaded.tokenizer
    if task.kind == "similarity":
        if len(examples.texts[0]) != 2:
            raise DataError("Similarity needs pairs: name two text columns (columns=, --text-column).")
        progress("measuring", 0, None)
        embedder = Embedder(loaded, options.max_length)
        similarities = divided(examples.texts, lambda own: list(embedder.similarities(own)) if own else [])
        columns = {"predicted": np.array(similarities), "label": np.array(numbers(examples))}
        first = [pair[0] for pair in examples.texts]
        return columns, text_features(model, tokenizer, first, options.max_length)
    encoded = encode(task, examples, model, tokenizer, options.max_length)
    features, collate = prepare_eval(task, model, tokenizer, encoded, options.seed)
    columns = predictions(task.kind, model, features, collate, progress, divided=True)
    if task.kind == "translation":
        columns |= from_main(lambda: written_ngrams(model, tokenizer, examples.texts, options.max_length, progress))
    return columns, without_labels(features)
