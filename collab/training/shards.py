"""Checkpoints of a training whose weights the processes share: each writes its part, any number reads them (DCP)."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import nn
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict

from ..processes import processes

_FOLDER = "shards"
_TRAINED = StateDictOptions(ignore_frozen_params=True, strict=False)
"""What is not trained is in the model that the run began with."""


def save_shards(model: nn.Module, optimizer: Any, folder: Path) -> None:
    """Writes the trained weights and the optimizer's state. All processes call this.

    Args:
        model: a sharded model, or a whole one in a single process.
        optimizer: its optimizer, as accelerate wraps it.
        folder: a folder that all processes see.
    """
    with _quietly():
        weights, state = get_state_dict(model, optimizer.optimizer, options=_TRAINED)
        dcp.save({"weights": weights, "optimizer": state}, checkpoint_id=folder / _FOLDER, no_dist=processes() == 1)


def load_shards(model: nn.Module, optimizer: Any | None, folder: Path) -> None:
    """Reads what `save_shards` wrote, in any number of processes.

    Args:
        model: as in `save_shards`.
        optimizer: as in `save_shards`; None for the weights alone.
        folder: the folder that was written to.
    """
    optimizers = () if optimizer is None else optimizer.optimizer
    with _quietly():
        weights, state = get_state_dict(model, optimizers, options=_TRAINED)
        stored: dict[str, Any] = {"weights": weights}
        if optimizer is not None:
            stored["optimizer"] = state
        dcp.load(stored, checkpoint_id=folder / _FOLDER, no_dist=processes() == 1)
        set_state_dict(model, optimizers, model_state_dict=weights, optim_state_dict=state, options=_TRAINED)


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Without torch's warnings that a checkpoint of one process is not distributed, and of its own deprecations."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
