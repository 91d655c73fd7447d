"""Measures how many times as fast as its original a model is, as the last verb of a command."""

from __future__ import annotations

from transformers import PreTrainedModel

from ..evaluation.speed import LENGTH, ROWS, measure_speed
from ..io.checkpoint import Checkpoint
from ..processes import from_main
from .transform import Run, Verb


def speed_at(rows: int = ROWS, length: int = LENGTH) -> Verb:
    """Adds a `Speed`, at so many rows of so many tokens, to a checkpoint that was made of an original in this run."""

    def verb(checkpoint: Checkpoint, run: Run) -> Checkpoint:
        assert checkpoint.original is not None
        return beside(checkpoint.original.model, checkpoint, run, rows, length)

    return verb


def beside(
    original: PreTrainedModel, checkpoint: Checkpoint, run: Run, rows: int = ROWS, length: int = LENGTH
) -> Checkpoint:
    """Adds a `Speed` beside a given model to a checkpoint."""
    run.progress("measuring speed", 0, None)
    return checkpoint.then(from_main(lambda: measure_speed(checkpoint.model, original, rows, length)))


speed = speed_at()
"""The same at the usual sizes."""
