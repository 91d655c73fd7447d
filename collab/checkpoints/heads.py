"""Scores the heads of a model in a folder (`collab heads`)."""

from __future__ import annotations

from dataclasses import dataclass

from ..data.prepare import Unlabelled
from ..data.task import Task
from ..errors import ConfigurationError
from ..graphs.served import find_graph
from ..heads.options import RowOptions, ScoreOptions
from ..heads.rows import HeadRows, head_rows
from ..heads.scores import HeadScores, score_rows
from ..io.checkpoint import Checkpoint
from ..io.options import LoadOptions
from ..io.read import resolve_source
from ..models.layers import attention_layers, passes_per_layer
from ..progress import Progress, no_progress
from .prune import load_to_score


@dataclass(frozen=True)
class ScoredHeads:
    """Scores of a checkpoint's heads.

    Attributes:
        scores: the scores.
        checkpoint: the model, for figures and further scores.
        rows: the rows that heads were scored on.
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
        model: folder or Hub id, or the `checkpoint` of an earlier call.
        data: the rows.
        task: task of the labels for gradient and ablation; None for the model's own answers.
        rows: number of rows and column of their labels.
        options: which scores.
        load_options: how to read the model.
        progress: called to report progress.

    Returns:
        The scores, with the model and the rows.

    Raises:
        ConfigurationError: if the folder holds an exported graph, whose attention cannot be observed.
        CollabError: as raised by `collab.load` and `collab.score_heads`.
    """
    if isinstance(model, Checkpoint):
        loaded = model
    else:
        progress("loading the model", 0, None)
        load_options = load_options or LoadOptions()
        if find_graph(model) is not None:
            raise ConfigurationError(
                f"{model} is an exported graph, whose attention cannot be observed. Give the model that it was "
                "exported from."
            )
        loaded = load_to_score(resolve_source(model, load_options.revision), load_options, task)
    scored = head_rows(loaded, data, task, rows)
    return ScoredHeads(score_rows(loaded, scored, options, progress), loaded, scored)


def notes(loaded: Checkpoint) -> list[str]:
    """Notes on a model's heads for the user."""
    layers = attention_layers(loaded.model)
    passes = passes_per_layer(loaded.model, len(layers))
    sentences: list[str] = []
    if passes > 1:
        sentences.append(
            f"Attention layers with their own weights: {len(layers)}, for {round(passes * len(layers))} passes. A "
            "head is the same in all of its passes: its gradient sums over them, and pruning removes it from all."
        )
    empty = [layer.name for layer in layers if not layer.heads]
    if empty:
        sentences.append(f"Without heads: {', '.join(empty)}.")
    return sentences
