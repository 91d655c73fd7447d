"""Measures how many times as fast as its original a model is, as the last verb of a command."""

from __future__ import annotations

from ..evaluation.speed import LENGTH, ROWS, measure_speed
from ..io.checkpoint import Checkpoint
from ..processes import from_main
from .transform import Run, Verb


def speed_at(rows: int = ROWS, length: int = LENGTH) -> Verb:
    """Adds a `Speed`, at so many rows of so many tokens, to a checkpoint that was made of an original in this run."""

    def verb(checkpoint: Checkpoint, run: Run) -> Checkpoint:
        assert checkpoint.original is not None
        run.progress("measuring speed", 0, None)
        original = checkpoint.original.model
        return checkpoint.then(from_main(lambda: measure_speed(checkpoint.model, original, rows, length)))

    return verb


speed = speed_at()
"""The same at the usual sizes."""
