"""Scoring the heads of a model in a folder: what `collab heads` does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..data.prepare import Unlabelled
from ..data.task import Task
from ..heads.options import RowOptions, ScoreOptions
from ..heads.rows import HeadRows, head_rows
from ..heads.scores import HeadScores, score_rows
from ..io.load import Checkpoint
from ..io.options import LoadOptions, Progress, no_progress
from ..models.layers import head_layers, passes_per_layer
from .prune import load_to_score


@dataclass(frozen=True)
class ScoredHeads:
    """Scores of a checkpoint's heads.

    Attributes:
        scores: what was found.
        checkpoint: of the model, for figures and more scores.
        rows: that they are of.
    """

    scores: HeadScores
    checkpoint: Checkpoint
    rows: HeadRows


def score_heads(
    model: str | Checkpoint,
    data: Unlabelled,
    *,
    task: Task | None = None,
    rows: RowOptions | None = None,
    options: ScoreOptions | None = None,
    load_options: LoadOptions | None = None,
    progress: Progress = no_progress,
) -> ScoredHeads:
    """Scores every head of a model in a folder or on the Hub, original or converted.

    Args:
        model: a folder or a Hub id, or what an earlier call loaded from one.
        data: the rows.
        task: whose labels gradient and ablation go by; None for the model's own answers.
        rows: how many rows, and which column holds their labels.
        options: which scores.
        load_options: how to read the model.
        progress: called as work goes on.

    Returns:
        The scores, and the model and rows that they are of.

    Raises:
        CollabError: of the kind that `collab.load` and `collab.score_heads` raise.
    """
    if isinstance(model, Checkpoint):
        loaded = model
    else:
        progress("loading the model", 0, None)
        loaded = load_to_score(model, task, load_options or LoadOptions())
    chosen = head_rows(loaded, data, task, rows)
    return ScoredHeads(score_rows(loaded, chosen, options, progress), loaded, chosen)


def notes(loaded: Checkpoint) -> list[str]:
    """What a user should know of a model's heads."""
    layers = head_layers(loaded.model)
    passes = passes_per_layer(loaded.model, layers)
    found: list[Any] = []
    if passes > 1:
        found.append(
            f"Attention layers with weights of their own: {len(layers)}, for {round(passes * len(layers))} passes. A "
            "head is the same in all of its passes: its gradient sums over them, and pruning takes it from all."
        )
    empty = [layer.name for layer in layers if not layer.heads]
    if empty:
        found.append(f"Without heads: {', '.join(empty)}.")
    return found
