"""This process among those that train together, as ``torchrun`` and ``accelerate launch`` say it in the environment."""

from __future__ import annotations

import os


def processes() -> int:
    """Number of processes of the training."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def local_rank() -> int:
    """Rank of this process among those of the training on this machine."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def is_main_process() -> bool:
    """Whether this is the main process of the training, the one that writes."""
    return int(os.environ.get("RANK", "0")) == 0
