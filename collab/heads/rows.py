"""Rows to score heads on: labelled for a task, or unlabelled."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..data.batches import Batch, Feature, row_batches, without_labels
from ..data.encoding import encode, examples_summary, prepare_eval
from ..data.examples import Examples, numbers, read_examples
from ..data.features import text_features
from ..data.prepare import Unlabelled, features_of
from ..data.source import DataSource
from ..data.task import Task
from ..errors import DataError
from ..evaluation.embedding import Embedder
from ..io.checkpoint import Checkpoint
from ..models.inputs import on_device
from ..steps.step import DataSummary
from .objective import LabelledRows, Objective, OwnOutputs, SimilarPairs
from .options import RowOptions

_ROWS = 32


@dataclass(frozen=True)
class HeadRows:
    """Rows to score heads on, encoded for a model.

    Attributes:
        task: task of the labels; None without labels.
        features: one per row; for similarity, those of the first sentences.
        examples: the labelled rows as read; None without labels.
        options: how the rows were read, with the seed of drawn outputs and masked tokens.
        summary: source of the rows, for reports.
    """

    task: Task | None
    features: list[Feature]
    examples: Examples | None = None
    options: RowOptions = field(default_factory=RowOptions)
    summary: DataSummary = field(default_factory=DataSummary)

    def objective(self, loaded: Checkpoint, samples: int | None = None) -> Objective:
        """The objective that a model's heads are judged by on these rows.

        Args:
            loaded: the model, on its device.
            samples: rows at most, the first ones; None for all.
        """
        model = loaded.model
        if self.task is None or self.examples is None:
            return OwnOutputs(model, self.batches(loaded, samples), self.options.seed)
        if self.task.kind == "similarity":
            embedder = Embedder(loaded, self.options.max_length)
            pairs, scores = self.examples.texts[:samples], numbers(self.examples)[:samples]
            return SimilarPairs(self.task, embedder, model, pairs, scores)
        features, collate = prepare_eval(self.task, model, loaded.tokenizer, self.features[:samples], self.options.seed)
        return LabelledRows(self.task, model, features, collate)

    def batches(self, loaded: Checkpoint, samples: int | None = None) -> list[Batch]:
        """Batches of the rows without labels, by length, on the model's device."""
        features = without_labels(self.features[:samples])
        batches = row_batches(loaded.model, loaded.processor, features, _ROWS)
        return [on_device(batch, loaded.model) for batch in batches]


def head_rows(loaded: Checkpoint, source: Unlabelled, task: Task | None, options: RowOptions | None = None) -> HeadRows:
    """Reads rows to score heads on.

    Args:
        loaded: the model.
        source: the rows.
        task: task of the labels; None to read rows without labels.
        options: number of rows and column of the labels.

    Raises:
        DataError: if the rows cannot be read, or there are no labels where the task needs them.
    """
    options = options or RowOptions()
    samples, max_length = options.samples, options.max_length
    if task is None:
        features, summary = features_of(
            loaded.model, loaded.processor, source, samples=samples, max_length=max_length, seed=options.seed
        )
        return HeadRows(None, features, None, options, summary)
    if not isinstance(source, DataSource):
        raise DataError("Labels come from a file or a data set. Name one, or omit the task.")
    try:
        examples = read_examples(source, task, options.label_column, samples)
    except DataError as error:
        raise DataError(
            f"{error} Without a task (no --task), heads are scored by the model's own answers, which need no labels."
        ) from error
    summary = examples_summary(task, examples) | {"task": task.kind}
    if task.kind == "similarity":
        if len(examples.texts[0]) != 2:
            raise DataError("Similarity needs pairs: name two text columns (columns=, --text-column).")
        numbers(examples)
        firsts = text_features(loaded.model, loaded.tokenizer, [pair[0] for pair in examples.texts], max_length)
        return HeadRows(task, firsts, examples, options, summary)
    features = encode(task, examples, loaded.model, loaded.tokenizer, max_length)
    return HeadRows(task, features, examples, options, summary)
