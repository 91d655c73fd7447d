"""Measures how many times as fast as its original a model is, as the last verb of a command."""

from __future__ import annotations

from ..evaluation.speed import measure_speed
from ..io.checkpoint import Checkpoint
from ..processes import from_main
from .transform import Run


def speed(checkpoint: Checkpoint, run: Run) -> Checkpoint:
    """Adds a `Speed` to a checkpoint that was made of an original in this run."""
    assert checkpoint.original is not None
    run.progress("measuring speed", 0, None)
    original = checkpoint.original.model
    return checkpoint.then(from_main(lambda: measure_speed(checkpoint.model, original)))
