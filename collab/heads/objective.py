"""What heads are judged by: the task's own loss and metric where there are labels, the model's own answers otherwise.

A goal runs a model on its rows. Whatever has been done to the model's heads meanwhile shows in what it returns.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedModel

from ..data.encoding import IGNORED, Collate
from ..data.features import Batch, Feature
from ..data.task import Task
from ..evaluation.embedding import Embedder, mean_embedding
from ..evaluation.metrics import measure
from ..evaluation.predict import predict
from ..models.answers import Answer, answers_of
from ..models.inputs import on_device

_ROWS = 32


class Goal(ABC):
    """Rows, and how good a model's answers for them are.

    Attributes:
        model: that is run.
        sides: rows of a model's batch that make one example: 2 where pairs of sentences are embedded.
        harm_name: what `harm` returns.
    """

    model: PreTrainedModel
    sides: int = 1
    harm_name: str

    @abstractmethod
    def losses(self) -> Sequence[Callable[[], Tensor]]:
        """One for each batch: runs the model and returns its loss for each example, (B,), with its graph."""

    @abstractmethod
    def harm(self, changes: Sequence[Callable[[], Any]], on_change: Callable[[], None] = lambda: None) -> list[float]:
        """How much worse each change of the model makes it.

        Args:
            changes: each makes a context in which the model is changed.
            on_change: called after every one.
        """


class OwnAnswers(Goal):
    """The model's answers are to stay what they are; no labels are needed.

    The loss is one whose gradient by a gate is, on average, as large as the answers move: the log-likelihood of a class
    that is drawn from the model's own distribution (then the mean square is the Fisher information), or, where the
    answer is a vector, its component in a random direction. A vector is the output of a regression, or, of a model
    without logits, the mean of its last hidden states over the tokens, of length one. Of several answers (where a span
    starts, and where it ends) the losses are added.

    The harm of a change is the mean over rows of the Kullback-Leibler divergence from the answers before (nats; summed
    over the tokens where every token has an answer), or of the distance to them.

    Args:
        model: in evaluation mode.
        batches: of features without labels, on the model's device.
        seed: of drawn classes and directions.
    """

    harm_name = "change of the answers"

    def __init__(self, model: PreTrainedModel, batches: Sequence[Batch], seed: int = 0) -> None:
        self.model = model
        self._batches = batches
        self._seed = seed

    def losses(self) -> Sequence[Callable[[], Tensor]]:
        generator = torch.Generator().manual_seed(self._seed)

        def loss(answer: Answer) -> Tensor:
            if answer.uncertain:
                return _per_row(-answer.log_likelihood(answer.draw(generator)), answer.seen)
            direction = torch.randn(answer.values.shape, generator=generator).to(answer.values.device)
            return (answer.values * direction).flatten(1).sum(1)

        def run(batch: Batch) -> Tensor:
            return torch.stack([loss(answer) for answer in self._answers(batch)]).sum(0)

        return [lambda batch=batch: run(batch) for batch in self._batches]  # type: ignore[misc]

    def harm(self, changes: Sequence[Callable[[], Any]], on_change: Callable[[], None] = lambda: None) -> list[float]:
        sums = [0.0] * len(changes)
        rows = 0
        with torch.no_grad():
            for number, batch in enumerate(self._batches):
                before = self._answers(batch)
                rows += len(before[0].values)
                for place, change in enumerate(changes):
                    with change():
                        after = self._answers(batch)
                    sums[place] += sum(_moved(*pair) for pair in zip(before, after, strict=True))
                    if number == len(self._batches) - 1:
                        on_change()
        return [total / rows for total in sums]

    def _answers(self, batch: Batch) -> list[Answer]:
        """Logits, or a vector for each row, (B, ...)."""
        output = self.model(**batch)
        mask = batch.get("attention_mask")
        answers = answers_of(self.model, output, mask)
        if answers and answers[0].kind != "states":
            return answers
        if "last_hidden_state" in output:
            vectors = mean_embedding(output["last_hidden_state"], mask)
        else:
            vectors = next(value for value in output.values() if isinstance(value, Tensor)).float()
        return [Answer("vectors", "numbers", vectors, None)]


class LabelledRows(Goal):
    """The task's own loss, row by row, and the loss in its metric.

    Args:
        task: of the model's head.
        model: in evaluation mode.
        features: with labels, as `to_judge` returns them.
        collate: likewise.
    """

    def __init__(self, task: Task, model: PreTrainedModel, features: Sequence[Feature], collate: Collate) -> None:
        self.model = model
        self._task = task
        self._features = features
        self._collate = collate
        self.harm_name = _harm_name(task)

    def losses(self) -> Sequence[Callable[[], Tensor]]:
        def run(rows: list[Feature]) -> Tensor:
            batch = on_device(self._collate(rows), self.model.device)
            labels = batch.pop("labels")
            logits = self.model(**batch).logits.float()
            if self._task.kind == "regression":
                return (logits.flatten() - labels) ** 2
            if self._task.kind == "classification":
                return functional.cross_entropy(logits, labels, reduction="none")
            loss = functional.cross_entropy(logits.mT, labels, ignore_index=IGNORED, reduction="none")  # (B, T)
            return _per_row(loss, labels != IGNORED) / (labels != IGNORED).sum(1).clamp(min=1)

        starts = range(0, len(self._features), _ROWS)
        batches = [list(self._features[start : start + _ROWS]) for start in starts]
        return [lambda rows=rows: run(rows) for rows in batches]  # type: ignore[misc]

    def harm(self, changes: Sequence[Callable[[], Any]], on_change: Callable[[], None] = lambda: None) -> list[float]:
        return _worse(self._task, self._metric, changes, on_change)

    def _metric(self) -> float:
        columns = predict(self._task.kind, self.model, self._features, self._collate)
        return measure(self._task.kind, columns)[self._task.best_by]


class SimilarPairs(Goal):
    """Embeddings of pairs, whose cosines should go with their scores.

    The loss is the square of cosine less score, the scores brought to 0 to 1 by their least and largest.

    Args:
        task: similarity.
        embedder: of the model.
        model: that it runs.
        pairs: of sentences.
        scores: of the pairs.
    """

    sides = 2

    def __init__(
        self,
        task: Task,
        embedder: Embedder,
        model: PreTrainedModel,
        pairs: Sequence[Sequence[str]],
        scores: Sequence[float],
    ) -> None:
        self.model = model
        self._task = task
        self._embedder = embedder
        self._pairs = pairs
        self._scores = np.array(scores, dtype=float)
        self.harm_name = _harm_name(task)

    def losses(self) -> Sequence[Callable[[], Tensor]]:
        least, span = self._scores.min(), max(float(np.ptp(self._scores)), 1e-12)
        wanted = torch.tensor((self._scores - least) / span, dtype=torch.float32)

        def run(start: int) -> Tensor:
            pairs = self._pairs[start : start + _ROWS]
            embeddings = self._embedder([pair[side] for side in (0, 1) for pair in pairs])  # (2·B, D)
            first, second = embeddings.chunk(2)
            return ((first * second).sum(1) - wanted[start : start + _ROWS].to(first)) ** 2

        return [lambda start=start: run(start) for start in range(0, len(self._pairs), _ROWS)]  # type: ignore[misc]

    def harm(self, changes: Sequence[Callable[[], Any]], on_change: Callable[[], None] = lambda: None) -> list[float]:
        return _worse(self._task, self._metric, changes, on_change)

    def _metric(self) -> float:
        columns = {"predicted": self._embedder.similarities(self._pairs), "label": self._scores}
        return measure(self._task.kind, columns)[self._task.best_by]


def _per_row(values: Tensor, mask: Tensor | None) -> Tensor:
    """Sums what counts of every row: (B,) or (B, T) → (B,)."""
    if mask is not None and mask.shape == values.shape:
        values = values * mask
    return values.flatten(1).sum(1) if values.ndim > 1 else values


def _moved(before: Answer, after: Answer) -> float:
    """How far answers have moved, summed over rows."""
    if before.uncertain:
        return float(_per_row(before.divergence(after), before.seen).sum())
    return float((after.values - before.values).flatten(1).norm(dim=1).sum())


def _harm_name(task: Task) -> str:
    return f"{'loss' if task.greater_is_better else 'rise'} of {task.best_by}"


def _worse(
    task: Task, metric: Callable[[], float], changes: Sequence[Callable[[], Any]], on_change: Callable[[], None]
) -> list[float]:
    """By how much the metric gets worse with each change."""
    sign = 1 if task.greater_is_better else -1
    before = metric()
    found = []
    for change in changes:
        with change():
            found.append(sign * (before - metric()))
        on_change()
    return found
