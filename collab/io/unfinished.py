"""The folder of unfinished training beside an output: its name, and which checkpoints in it are whole.

Does not import torch, so that the command line can say at once what an interrupted command goes on from.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Literal

WHOLE = "collab_checkpoint_is_whole"
"""Marker file, written into a checkpoint last."""

CHOSEN = "chosen-*.json"
"""The files in a work folder that keep what a compression chose."""

PRUNING = "pruning"
"""The kind of work folder of fine-tuning whose model is pruned midway."""

WHOLE_HALF, PRUNED_HALF = "whole", "pruned"
"""In that, the model after the first half, and the same pruned."""


def work_folder(output: Path, kind: str = "training") -> Path:
    """The work folder of an output folder, beside it."""
    output = output.resolve()
    return output.with_name(f"{output.name}.{kind}")


def unfinished_work(output: Path) -> Literal["nothing", "a beginning", "a checkpoint"]:
    """What an interrupted command has left to go on from: also chosen widths count as a beginning."""
    pruning = work_folder(output, PRUNING)
    if any((pruning / part).exists() for part in (WHOLE_HALF, PRUNED_HALF)):
        return "a checkpoint"
    work = work_folder(output)
    if newest_checkpoint(work) or newest_checkpoint(work_folder(pruning / WHOLE_HALF)):
        return "a checkpoint"
    return "a beginning" if any(work.glob(CHOSEN)) else "nothing"


def newest_checkpoint(work: Path) -> Path | None:
    """The latest complete checkpoint in a work folder; None if there is none."""
    checkpoints = [path.parent for path in work.glob(f"checkpoint-*/{WHOLE}")]
    return max(checkpoints, key=lambda path: int(path.name.rpartition("-")[2]), default=None)


def drop_other_checkpoints(work: Path, *keep: str | None) -> None:
    """Deletes all checkpoints but those named. The marker goes first, so that a partial checkpoint is never valid."""
    for checkpoint in work.glob("checkpoint-*"):
        if str(checkpoint) not in keep and checkpoint.name not in keep:
            (checkpoint / WHOLE).unlink(missing_ok=True)
            shutil.rmtree(checkpoint, ignore_errors=True)
