"""Scoring the heads of a model in a folder: what `collab heads` does."""

from __future__ import annotations

from typing import Any

from ..data.prepare import Unlabelled
from ..data.task import Task
from ..heads.rows import HeadRows, head_rows
from ..heads.scores import HeadScores, OnDone, ScoreOptions, score_heads
from ..io.load import Loaded, LoadOptions
from ..models.layers import head_layers, passes_per_layer
from .prune import load_to_score


def score_checkpoint(
    model: str | Loaded,
    data: Unlabelled,
    *,
    task: Task | None = None,
    label_column: str | None = None,
    samples: int = 512,
    max_length: int | None = None,
    seed: int = 0,
    options: ScoreOptions | None = None,
    reading: LoadOptions | None = None,
    on_done: OnDone = lambda *_: None,
) -> tuple[HeadScores, Loaded, HeadRows]:
    """Scores every head of a model in a folder or on the Hub, original or converted.

    Args:
        model: a folder or a Hub id, or what an earlier call loaded from one.
        data: the rows.
        task: whose labels gradient and ablation go by; None for the model's own answers.
        label_column: of the labels; found by its usual names if None.
        samples: rows at most.
        max_length: tokens of a row at most; None for as many as the model takes.
        seed: of the sample, of drawn answers and masked tokens.
        options: which scores.
        reading: how to read the model.
        on_done: called as work goes on.

    Returns:
        The scores, and the model and rows that they are of, for figures.

    Raises:
        CollabError: of the kind that `load`, `head_rows` and `score_heads` raise.
    """
    loaded = model if isinstance(model, Loaded) else load_to_score(model, task, reading or LoadOptions())
    rows = head_rows(loaded, data, task, label_column=label_column, samples=samples, max_length=max_length, seed=seed)
    return score_heads(loaded, rows, options, on_done), loaded, rows


def notes(loaded: Loaded) -> list[str]:
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
