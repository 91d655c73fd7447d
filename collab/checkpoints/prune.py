"""Prunes heads of a model in a folder into another folder (`collab prune`)."""

from __future__ import annotations

from pathlib import Path
from typing import Unpack

from ..data.prepare import Unlabelled
from ..data.task import Task
from ..errors import ConfigurationError
from ..heads.options import PruneOptions
from ..heads.pruning import prune as prune_model
from ..heads.rows import head_rows
from ..io.checkpoint import Checkpoint
from ..io.load import load_source
from ..io.options import LoadOptions, TransformOptions
from ..io.read import Source
from ..training.options import HealRequest
from .heal import healed
from .speed import speed
from .transform import Run, Verb, transform


def prune(
    model: str,
    output: str | Path,
    options: PruneOptions,
    *,
    data: Unlabelled | None = None,
    task: Task | None = None,
    heal: HealRequest | None = None,
    measure_speed: bool = False,
    **more: Unpack[TransformOptions],
) -> Checkpoint:
    """Prunes heads of a model in a folder or on the Hub into a folder that appears whole or not at all.

    Args:
        model: folder or Hub id of an original or a converted model.
        output: folder to write; it always holds a collaborative model.
        options: which heads to prune.
        data: rows to score heads on; not needed with `PruneOptions.keep`.
        task: task of the labels to score by; None for the model's own answers.
        heal: data to heal the pruned model on, with the unpruned model as teacher; None for no training. Unfinished
            healing is kept in `OUTPUT.training`, and the same call resumes it.
        measure_speed: whether to measure how many times as fast as the unpruned model the result is.
        **more: see [`TransformOptions`][collab.TransformOptions].

    Returns:
        The pruned model as written; `Checkpoint.step` gives its `Pruning`.

    Raises:
        CollabError: as raised by `collab.load`, `collab.score_heads`, `collab.heal` and `collab.save`.
    """

    def load(source: Source, options: LoadOptions) -> Checkpoint:
        return load_to_score(source, options, task)

    verbs = [pruned_by(options, data, task), None if heal is None else healed(heal), speed if measure_speed else None]
    return transform(model, output, verbs, load=load, trains=heal is not None, **more)


def pruned_by(options: PruneOptions, data: Unlabelled | None, task: Task | None) -> Verb:
    """Pruning as a verb; arguments as of `prune`."""

    def verb(checkpoint: Checkpoint, run: Run) -> Checkpoint:
        rows = None
        if options.score is not None:
            if data is None:
                raise ConfigurationError(
                    "Scoring heads needs data: give --data (data=), or name the heads to keep with --keep (keep=)."
                )
            rows = head_rows(checkpoint, data, task, options.rows)
        return prune_model(checkpoint, options, rows, progress=run.progress)

    return verb


def load_to_score(source: Source, options: LoadOptions, task: Task | None) -> Checkpoint:
    """Loads a model to score its heads, with the task's head if there is a task."""
    auto_class = task.auto_class if task is not None and task.head is not None else None
    loaded = load_source(source, options, auto_class=auto_class)
    if task is not None and task.head is not None:
        loaded.require_head(task.kind)
    return loaded
