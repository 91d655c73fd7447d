"""Every score of every head, and what they say of each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..data.prepare import Unlabelled
from ..data.task import Task
from ..io.load import Checkpoint
from ..io.options import Progress, no_progress
from ..models.layers import HeadLayer, head_layers
from .ablation import ablation
from .gradient import gradient_importance
from .options import SCORES, RowOptions, ScoreOptions
from .redundancy import product_likeness, sharing
from .rows import HeadRows, head_rows
from .statistics import NAMES as STATISTICS
from .statistics import attention_statistics


@dataclass(frozen=True)
class HeadScores:
    """Scores of a model's heads.

    Attributes:
        layers: the attention layers' names.
        heads: by layer, the numbers in the original of the heads that it has.
        total: heads of a layer of the original.
        scores: by name and layer, one number for each of its heads.
        likeness: ``weights`` and ``maps`` by layer, (H, H).
        sharing: by layer, (H, R): how much each head uses each shared dimension; of converted models only.
        harm_name: what ablation measured.
        data: what was measured on.
    """

    layers: tuple[str, ...]
    heads: dict[str, tuple[int, ...]]
    total: int
    scores: dict[str, dict[str, list[float]]]
    likeness: dict[str, dict[str, list[list[float]]]] = field(default_factory=dict)
    sharing: dict[str, list[list[float]]] = field(default_factory=dict)
    harm_name: str = ""
    data: dict[str, Any] = field(default_factory=dict)

    def grid(self, name: str) -> np.ndarray:
        """A score as (layers, heads of the original), NaN where a head is gone."""
        found = np.full((len(self.layers), self.total), np.nan)
        for row, layer in enumerate(self.layers):
            if self.heads[layer]:
                found[row, list(self.heads[layer])] = self.scores[name][layer]
        return found

    def importance(self, name: str) -> dict[str, dict[int, float]]:
        """A score by layer and head, more being more important."""
        sign = SCORES[name][0]
        return {
            layer: {head: sign * value for head, value in zip(self.heads[layer], values, strict=True)}
            for layer, values in self.scores[name].items()
        }

    def correlations(self) -> dict[str, dict[str, float]]:
        """Spearman's rank correlation of every two scores over the heads, each so that more is more important."""
        return {
            one: {other: rank_correlation(self.importance(one), self.importance(other)) for other in self.scores}
            for one in self.scores
        }

    def to_dict(self) -> dict[str, Any]:
        """The scores as JSON values."""
        return {
            "layers": list(self.layers),
            "heads": {layer: list(heads) for layer, heads in self.heads.items()},
            "heads_before_pruning": self.total,
            "scores": self.scores,
            "meaning": {name: SCORES[name][1] for name in self.scores},
            "harm": self.harm_name,
            "correlations": self.correlations(),
            "likeness": self.likeness,
            "sharing": self.sharing,
            "data": self.data,
        }


def rank_correlation(one: Mapping[str, Mapping[int, float]], other: Mapping[str, Mapping[int, float]]) -> float:
    """Spearman's correlation of two scores over the same heads; NaN if one of them is constant."""
    from scipy.stats import spearmanr  # slow to import

    first, second = ([value for heads in score.values() for value in heads.values()] for score in (one, other))
    if np.ptp(first) == 0 or np.ptp(second) == 0:
        return float("nan")
    return float(spearmanr(first, second).statistic)


def score_heads(
    model: Checkpoint,
    data: Unlabelled,
    *,
    task: Task | None = None,
    rows: RowOptions | None = None,
    options: ScoreOptions | None = None,
    progress: Progress = no_progress,
) -> HeadScores:
    """Scores every head of a model, original or converted.

    Args:
        model: what `collab.load` returned, or `Checkpoint.of(model, tokenizer)` of a model in memory.
        data: the rows; see `collab.heal`. A `DataSource` where they have labels.
        task: whose labels gradient and ablation go by; None for the model's own answers.
        rows: how many rows, and which column holds their labels.
        options: which scores.
        progress: called as work goes on.

    Raises:
        DataError: if the rows cannot be read or do not fit the model.
    """
    return score_rows(model, head_rows(model, data, task, rows), options, progress)


def score_rows(
    loaded: Checkpoint, rows: HeadRows, options: ScoreOptions | None = None, progress: Progress = no_progress
) -> HeadScores:
    """Scores every head of a model.

    Args:
        loaded: the model, original or converted.
        rows: to judge on.
        options: what to compute.
        progress: called as work goes on.

    Raises:
        DataError: if the rows do not fit the model.
    """
    options = options or ScoreOptions()
    model = loaded.model.eval()
    layers = head_layers(model)
    living = [layer for layer in layers if layer.heads]
    found: dict[str, dict[str, Tensor]] = {}
    likeness: dict[str, dict[str, Tensor]] = {}
    harm_name = ""
    if options.wants("gradient"):
        goal = rows.goal(loaded)
        scores = gradient_importance(goal, layers, _counter(progress, "gradients", len(goal.losses())))
        found["gradient"] = _normalized(scores) if options.normalize else scores
    if options.wants(*STATISTICS, "like_maps"):
        batches = rows.batches(loaded)
        statistics = attention_statistics(model, layers, batches, _counter(progress, "attention", len(batches)))
        by_layer = {layer.name: statistics[layer.name].scores() for layer in living}
        for name in STATISTICS:
            if options.wants(name):
                found[name] = {layer: scores[name] for layer, scores in by_layer.items()}
        if options.wants("like_maps"):
            likeness["maps"] = {layer.name: statistics[layer.name].likeness() for layer in living}
    if options.wants("ablation", "alone"):
        goal = rows.goal(loaded, options.ablation_samples)
        harm_name = goal.harm_name
        changes = 2 * living_heads(layers)
        without, alone = ablation(goal, layers, _counter(progress, "ablation", changes))
        found |= {name: one for name, one in (("ablation", without), ("alone", alone)) if options.wants(name)}
    if options.wants("like_weights"):
        likeness["weights"] = {layer.name: product_likeness(layer) for layer in living}
    for kind, matrices in likeness.items():
        found[f"like_{kind}"] = {name: _most_alike(matrix) for name, matrix in matrices.items()}
    shared = {layer.name: sharing(layer) for layer in living}
    return HeadScores(
        layers=tuple(layer.name for layer in layers),
        heads={layer.name: layer.heads for layer in layers},
        total=layers[0].total,
        scores={
            name: {layer.name: found[name][layer.name].tolist() if layer.heads else [] for layer in layers}
            for name in SCORES
            if name in found
        },
        likeness={kind: {name: one.tolist() for name, one in matrices.items()} for kind, matrices in likeness.items()},
        sharing={name: one.tolist() for name, one in shared.items() if one is not None},
        harm_name=harm_name,
        data=rows.summary,
    )


def _normalized(scores: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: one / one.norm().clamp(min=1e-30) if len(one) else one for name, one in scores.items()}


def _most_alike(matrix: Tensor) -> Tensor:
    """The largest entry of each row but the diagonal; zero for a single head."""
    if len(matrix) < 2:
        return torch.zeros(len(matrix), dtype=matrix.dtype)
    return (matrix - 2 * torch.eye(len(matrix), dtype=matrix.dtype)).amax(1)


def _counter(progress: Progress, what: str, total: int) -> Callable[[], None]:
    done = 0

    def count() -> None:
        nonlocal done
        done += 1
        progress(what, done, total)

    return count


def living_heads(layers: Sequence[HeadLayer]) -> int:
    """How many heads a model has."""
    return sum(len(layer.heads) for layer in layers)
