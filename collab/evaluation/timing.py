"""How long models take, measured in turn so that what else the machine does hits all of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

Run = tuple[Callable[..., Any], Sequence[dict[str, Tensor]]]
"""A model and its batches."""


@dataclass(frozen=True)
class Spread:
    """Median and quartiles of what was measured."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        low, median, high = (float(one) for one in np.quantile(values, (0.25, 0.5, 0.75)))
        return cls(median, low, high)


def time_in_turn(runs: Sequence[Run], *, backwards: bool = False) -> list[float]:
    """Seconds that each model takes for its batches, one round: call by call, each model before the next batch.

    Args:
        runs: the models, each with as many batches as the others.
        backwards: begin with the last model; turn it every round, so that none is always the first.
    """
    seconds = [0.0] * len(runs)
    order = list(reversed(range(len(runs)))) if backwards else list(range(len(runs)))
    with torch.no_grad():
        for batches in zip(*(batches for _, batches in runs), strict=True):
            for number in order:
                device = next(iter(batches[number].values())).device
                wait(device)
                start = time.perf_counter()
                runs[number][0](**batches[number])
                wait(device)
                seconds[number] += time.perf_counter() - start
    return seconds


def wait(device: torch.device) -> None:
    """Waits until a GPU has done what it was told to."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
