"""All scores of all heads, and their correlations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..data.prepare import Unlabelled
from ..data.task import Task
from ..errors import ConfigurationError
from ..io.checkpoint import Checkpoint
from ..models.layers import AttentionLayer, attention_layers
from ..models.states import evaluating
from ..processes import processes, rank
from ..progress import Progress, no_progress
from ..steps.step import DataSummary
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
        layers: names of the attention layers.
        heads: by layer, the heads left, as numbers in the original.
        totals: by layer, how many heads it has in the original.
        scores: by score and layer, one number per head left.
        likeness: ``weights`` and ``maps`` by layer, (H, H).
        sharing: by layer, (H, R): how much each head uses each shared dimension; converted models only.
        degradation_name: what ablation measures.
        data: the rows that heads were scored on.
    """

    layers: tuple[str, ...]
    heads: dict[str, tuple[int, ...]]
    totals: dict[str, int]
    scores: dict[str, dict[str, list[float]]]
    likeness: dict[str, dict[str, list[list[float]]]] = field(default_factory=dict)
    sharing: dict[str, list[list[float]]] = field(default_factory=dict)
    degradation_name: str = ""
    data: DataSummary = field(default_factory=DataSummary)

    @property
    def total(self) -> int:
        """The most heads that a layer of the original has; a decoder may have more than its encoder."""
        return max(self.totals.values())

    def grid(self, name: str) -> np.ndarray:
        """A score as an array (layers, `total`), NaN for pruned heads and for those that a layer never had."""
        grid = np.full((len(self.layers), self.total), np.nan)
        for row, layer in enumerate(self.layers):
            if self.heads[layer]:
                grid[row, list(self.heads[layer])] = self.scores[name][layer]
        return grid

    def importance(self, name: str) -> dict[str, dict[int, float]]:
        """A score by layer and head, with the sign chosen so that higher means more important."""
        sign = SCORES[name][0]
        return {
            layer: {head: sign * value for head, value in zip(self.heads[layer], values, strict=True)}
            for layer, values in self.scores[name].items()
        }

    def correlations(self) -> dict[str, dict[str, float]]:
        """Spearman's rank correlation between every two scores over the heads; see `importance`."""
        return {
            row: {column: rank_correlation(self.importance(row), self.importance(column)) for column in self.scores}
            for row in self.scores
        }

    def to_dict(self) -> dict[str, Any]:
        """The scores as JSON values."""
        return {
            "layers": list(self.layers),
            "heads": {layer: list(heads) for layer, heads in self.heads.items()},
            "heads_before_pruning": self.totals,
            "scores": self.scores,
            "meaning": {name: SCORES[name][1] for name in self.scores},
            "degradation": self.degradation_name,
            "correlations": self.correlations(),
            "likeness": self.likeness,
            "sharing": self.sharing,
            "data": self.data,
        }


def rank_correlation(first: Mapping[str, Mapping[int, float]], second: Mapping[str, Mapping[int, float]]) -> float:
    """Spearman's correlation of two scores over the same heads; NaN if one of them is constant."""
    from scipy.stats import spearmanr  # slow to import

    values = [[value for heads in scores.values() for value in heads.values()] for scores in (first, second)]
    if any(np.ptp(ranked) == 0 for ranked in values):
        return float("nan")
    return float(spearmanr(*values).statistic)


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
        model: a checkpoint from `collab.load`, or `Checkpoint(model, tokenizer)` for a model in memory.
        data: the rows, as for `collab.heal`; a `DataSource` if they have labels.
        task: task of the labels for gradient and ablation; None for the model's own outputs.
        rows: number of rows and column of their labels.
        options: which scores.
        progress: called to report progress.

    Raises:
        DataError: if the rows cannot be read or do not fit the model.
    """
    return score_rows(model, head_rows(model, data, task, rows), options, progress)


def score_rows(
    loaded: Checkpoint, rows: HeadRows, options: ScoreOptions | None = None, progress: Progress = no_progress
) -> HeadScores:
    """Scores every head of a model. Several processes divide the rows, and all get all scores.

    Args:
        loaded: the model, original or converted; run in evaluation mode, and left in the mode it was in.
        rows: rows to score on.
        options: which scores.
        progress: called to report progress.

    Raises:
        DataError: if the rows do not fit the model.
    """
    with evaluating(loaded.model):
        return _scores(loaded, rows, options or ScoreOptions(), progress)


def _scores(loaded: Checkpoint, rows: HeadRows, options: ScoreOptions, progress: Progress) -> HeadScores:
    """See `score_rows`; of a model in evaluation mode."""
    model = loaded.model
    layers = attention_layers(model)
    living = [layer for layer in layers if layer.heads]
    scores: dict[str, dict[str, Tensor]] = {}
    likeness: dict[str, dict[str, Tensor]] = {}
    degradation_name = ""
    if options.wants("gradient"):
        objective = rows.objective(loaded)
        count = _counter(progress, "gradients", len(objective.losses()))
        gradient = gradient_importance(objective, layers, count)
        scores["gradient"] = _normalized(gradient) if options.normalize else gradient
    if options.wants(*STATISTICS, "like_maps"):
        batches = rows.batches(loaded)
        statistics = attention_statistics(model, layers, batches, _counter(progress, "attention", len(batches)))
        by_layer = {layer.name: statistics[layer.name].scores() for layer in living}
        for name in STATISTICS:
            if options.wants(name):
                scores[name] = {layer: values[name] for layer, values in by_layer.items()}
        if options.wants("like_maps"):
            likeness["maps"] = {layer.name: statistics[layer.name].likeness() for layer in living}
    if options.wants("ablation", "alone"):
        objective = rows.objective(loaded, options.ablation_samples)
        degradation_name = objective.degradation_name
        changes = 2 * living_heads(layers)
        without, alone = ablation(objective, layers, _counter(progress, "ablation", changes))
        scores |= {name: values for name, values in (("ablation", without), ("alone", alone)) if options.wants(name)}
    rotary = any(layer.rotary for layer in living)
    if rotary and "like_weights" in options.scores:
        raise ConfigurationError(
            "like_weights compares heads by their matrix A_h, but with rotary positions a head has one for every "
            "distance. Use like_maps."
        )
    if options.wants("like_weights") and not rotary:
        likeness["weights"] = {layer.name: product_likeness(layer) for layer in living}
    for kind, matrices in likeness.items():
        scores[f"like_{kind}"] = {name: _most_similar(matrix) for name, matrix in matrices.items()}
    shared = {layer.name: usage for layer in living if not rotary and (usage := sharing(layer)) is not None}
    return HeadScores(
        layers=tuple(layer.name for layer in layers),
        heads={layer.name: layer.heads for layer in layers},
        totals={layer.name: layer.total for layer in layers},
        scores={
            name: {layer.name: scores[name][layer.name].tolist() if layer.heads else [] for layer in layers}
            for name in SCORES
            if name in scores
        },
        likeness={kind: _lists(matrices) for kind, matrices in likeness.items()},
        sharing=_lists(shared),
        degradation_name=degradation_name,
        data=rows.summary,
    )


def _lists(tensors: Mapping[str, Tensor]) -> dict[str, list[list[float]]]:
    return {name: tensor.tolist() for name, tensor in tensors.items()}


def _normalized(scores: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: values / values.norm().clamp(min=1e-30) if len(values) else values for name, values in scores.items()}


def _most_similar(matrix: Tensor) -> Tensor:
    """The largest off-diagonal entry of each row; zero for a single head."""
    if len(matrix) < 2:
        return torch.zeros(len(matrix), dtype=matrix.dtype)
    return (matrix - 2 * torch.eye(len(matrix), dtype=matrix.dtype)).amax(1)


def _counter(progress: Progress, what: str, total: int) -> Callable[[], None]:
    """Counts the part of `total` pieces that this process does."""
    done, total = 0, len(range(rank(), total, processes()))
    progress(what, 0, total)

    def count() -> None:
        nonlocal done
        done += 1
        progress(what, done, total)

    return count


def living_heads(layers: Sequence[AttentionLayer]) -> int:
    """Number of heads that are not pruned."""
    return sum(len(layer.heads) for layer in layers)
