"""Objectives to judge heads by: the task's loss and metric where there are labels, else the model's own outputs.

An objective runs a model on its rows, with the model's heads as they are at that moment.
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

from ..data.batches import Batch, Feature, tokens_of_pass, within_tokens
from ..data.encoding import IGNORED, Collate
from ..data.task import Task
from ..evaluation.embedding import Embedder, mean_embedding
from ..evaluation.metrics import measure
from ..evaluation.predict import predictions
from ..models.inputs import on_device
from ..models.outputs import Output, outputs_of
from ..models.padding import output_mask
from ..processes import seed_of_batch

_ROWS = 32


class Objective(ABC):
    """Rows, and a measure of a model's outputs on them.

    Attributes:
        model: the model to run.
        sides: rows of a batch per example: 2 where pairs of sentences are embedded.
        degradation_name: what `degradation` measures.
    """

    model: PreTrainedModel
    sides: int = 1
    degradation_name: str

    @abstractmethod
    def losses(self) -> Sequence[Callable[[], Tensor]]:
        """One function per batch, which runs the model and returns its differentiable loss for each example, (B,)."""

    @abstractmethod
    def degradation(
        self, changes: Sequence[Callable[[], Any]], on_change: Callable[[], None] = lambda: None
    ) -> list[float]:
        """How much worse each change of the model makes it.

        Args:
            changes: each returns a context in which the model is changed.
            on_change: called after every change.

        Returns:
            One number per change; larger is worse.
        """


class OwnOutputs(Objective):
    """The model's own outputs are the reference; no labels are needed.

    The gradient of the loss by a gate is, on average, as large as the change of the outputs. The loss is the
    log-likelihood of a class drawn from the model's own distribution (the mean squared gradient is then the Fisher
    information), or, where the output is a vector, its component in a random direction. A vector is the output of a
    regression or, for a model without logits, the normalized mean of its last hidden states over the tokens. The losses
    of several outputs (start and end of a span) are added.

    The degradation is the mean over rows of the Kullback-Leibler divergence from the outputs before the change (nats;
    summed over the tokens where every token has an output), or of the distance to them.

    Args:
        model: in evaluation mode.
        batches: features without labels, on the model's device.
        seed: seed of drawn classes and directions.
    """

    degradation_name = "change of the answers"

    def __init__(self, model: PreTrainedModel, batches: Sequence[Batch], seed: int = 0) -> None:
        self.model = model
        self._batches = batches
        self._seed = seed

    def losses(self) -> Sequence[Callable[[], Tensor]]:
        generator = torch.Generator()

        def loss(output: Output) -> Tensor:
            if output.uncertain:
                return _per_row(-output.log_likelihood(output.draw(generator)), output.seen)
            direction = torch.randn(output.values.shape, generator=generator).to(output.values.device)
            return (_seen(output, output.values) * direction).flatten(1).sum(1)

        def run(number: int) -> Tensor:
            generator.manual_seed(seed_of_batch(self._seed, number))
            return torch.stack([loss(output) for output in self._outputs(self._batches[number])]).sum(0)

        return [lambda number=number: run(number) for number in range(len(self._batches))]  # type: ignore[misc]

    def degradation(
        self, changes: Sequence[Callable[[], Any]], on_change: Callable[[], None] = lambda: None
    ) -> list[float]:
        sums = [0.0] * len(changes)
        rows = 0
        with torch.no_grad():
            for number, batch in enumerate(self._batches):
                before = self._outputs(batch)
                rows += len(before[0].values)
                for index, change in enumerate(changes):
                    with change():
                        after = self._outputs(batch)
                    sums[index] += sum(_change(*pair) for pair in zip(before, after, strict=True))
                    if number == len(self._batches) - 1:
                        on_change()
        return [total / rows for total in sums]

    def _outputs(self, batch: Batch) -> list[Output]:
        """Logits, or one vector per row, (B, ...)."""
        returned = self.model(**batch)
        mask = output_mask(batch)
        outputs = outputs_of(self.model, returned, mask)
        if outputs and outputs[0].kind != "states":
            return outputs
        if "last_hidden_state" in returned:
            vectors = mean_embedding(returned["last_hidden_state"], mask)
        else:
            vectors = next(value for value in returned.values() if isinstance(value, Tensor)).float()
        return [Output("vectors", "numbers", vectors, None)]


class LabelledRows(Objective):
    """The task's own loss, row by row, and its own metric.

    Args:
        task: task of the model's head.
        model: in evaluation mode.
        features: features with labels, as returned by `prepare_eval`.
        collate: makes a batch of them, as returned by `prepare_eval`.
    """

    def __init__(self, task: Task, model: PreTrainedModel, features: Sequence[Feature], collate: Collate) -> None:
        self.model = model
        self._task = task
        self._features = features
        self._collate = collate
        self.degradation_name = _degradation_name(task)

    def losses(self) -> Sequence[Callable[[], Tensor]]:
        def run(rows: list[Feature]) -> Tensor:
            batch = on_device(self._collate(rows), self.model)
            labels = batch.pop("labels")
            logits = self.model(**batch).logits.float()
            if self._task.kind == "regression":
                return (logits.flatten() - labels) ** 2
            if self._task.kind == "classification":
                return functional.cross_entropy(logits, labels, reduction="none")
            loss = functional.cross_entropy(logits.mT, labels, ignore_index=IGNORED, reduction="none")  # (B, T)
            return _per_row(loss, labels != IGNORED) / (labels != IGNORED).sum(1).clamp(min=1)

        parts = within_tokens(self._features, tokens_of_pass(self.model), _ROWS)
        return [lambda part=part: run([self._features[row] for row in part]) for part in parts]  # type: ignore[misc]

    def degradation(
        self, changes: Sequence[Callable[[], Any]], on_change: Callable[[], None] = lambda: None
    ) -> list[float]:
        return _degradations(self._task, self._metric, changes, on_change)

    def _metric(self) -> float:
        columns = predictions(self._task.kind, self.model, self._features, self._collate)
        return measure(self._task.kind, columns)[self._task.best_by]


class SimilarPairs(Objective):
    """Embeddings of pairs, whose cosines should follow their scores.

    The loss is (cosine - score)², with the scores scaled to the range from 0 to 1.

    Args:
        task: the similarity task.
        embedder: embeds with the model.
        model: the model that it runs.
        pairs: pairs of sentences.
        scores: one per pair.
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
        self.degradation_name = _degradation_name(task)

    def losses(self) -> Sequence[Callable[[], Tensor]]:
        least, span = self._scores.min(), max(float(np.ptp(self._scores)), 1e-12)
        target = torch.tensor((self._scores - least) / span, dtype=torch.float32)

        def run(start: int) -> Tensor:
            pairs = self._pairs[start : start + _ROWS]
            embeddings = self._embedder([pair[side] for side in (0, 1) for pair in pairs])  # (2·B, D)
            first, second = embeddings.chunk(2)
            return ((first * second).sum(1) - target[start : start + _ROWS].to(first)) ** 2

        return [lambda start=start: run(start) for start in range(0, len(self._pairs), _ROWS)]  # type: ignore[misc]

    def degradation(
        self, changes: Sequence[Callable[[], Any]], on_change: Callable[[], None] = lambda: None
    ) -> list[float]:
        return _degradations(self._task, self._metric, changes, on_change)

    def _metric(self) -> float:
        columns = {"predicted": self._embedder.similarities(self._pairs), "label": self._scores}
        return measure(self._task.kind, columns)[self._task.best_by]


def _per_row(values: Tensor, mask: Tensor | None) -> Tensor:
    """Sums the unmasked values of every row: (B,) or (B, T) → (B,)."""
    if mask is not None and mask.shape == values.shape:
        values = values * mask
    return values.flatten(1).sum(1) if values.ndim > 1 else values


def _seen(output: Output, values: Tensor) -> Tensor:
    """Values like an output's, with 0 for padding."""
    if output.seen is None:
        return values
    return values * output.seen.reshape(*output.seen.shape, *[1] * (values.ndim - output.seen.ndim))


def _change(before: Output, after: Output) -> float:
    """Divergence or distance between the outputs before and after, summed over rows."""
    if before.uncertain:
        return float(_per_row(before.divergence(after), before.seen).sum())
    return float(_seen(before, after.values - before.values).flatten(1).norm(dim=1).sum())


def _degradation_name(task: Task) -> str:
    return f"{'loss' if task.greater_is_better else 'rise'} of {task.best_by}"


def _degradations(
    task: Task, metric: Callable[[], float], changes: Sequence[Callable[[], Any]], on_change: Callable[[], None]
) -> list[float]:
    """How much worse each change makes the metric."""
    sign = 1 if task.greater_is_better else -1
    before = metric()
    degradations = []
    for change in changes:
        with change():
            degradations.append(sign * (before - metric()))
        on_change()
    return degradations
