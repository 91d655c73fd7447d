"""The folder of unfinished training beside an output: its name, and which checkpoints in it are whole.

Does not import torch, so that the command line can say at once what an interrupted command goes on from.
"""

from __future__ import annotations

import shutil
from pathlib import Path

WHOLE = "collab_checkpoint_is_whole"
"""Marker file, written into a checkpoint last."""


def work_folder(output: Path, kind: str = "training") -> Path:
    """The work folder of an output folder, beside it."""
    output = output.resolve()
    return output.with_name(f"{output.name}.{kind}")


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
