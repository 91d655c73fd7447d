"""Times of models that alternate, so that other load on the machine affects all of them."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor


class TimedElsewhere(ABC):
    """A model that runs in another process, which measures its calls."""

    @abstractmethod
    def seconds(self, batch: Mapping[str, Tensor]) -> float:
        """Seconds of one call."""


Run = tuple[Callable[..., Any] | TimedElsewhere, Sequence[dict[str, Tensor]]]
"""A model and its batches."""


@dataclass(frozen=True)
class Spread:
    """Median and quartiles of measurements."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        low, median, high = map(float, np.quantile(values, (0.25, 0.5, 0.75)))
        return cls(median, low, high)


def time_in_turn(runs: Sequence[Run], *, backwards: bool = False) -> list[float]:
    """Seconds that each model takes for its batches in one round; every model runs a batch before the next batch.

    Args:
        runs: the models with their batches, equally many for each.
        backwards: start with the last model; alternate between rounds so that no model is always first.
    """
    seconds = [0.0] * len(runs)
    order = list(reversed(range(len(runs)))) if backwards else list(range(len(runs)))
    with torch.no_grad():
        for batches in zip(*(batches for _, batches in runs), strict=True):
            for number in order:
                seconds[number] += _seconds(runs[number][0], batches[number])
    return seconds


def _seconds(call: Callable[..., Any] | TimedElsewhere, batch: dict[str, Tensor]) -> float:
    """Seconds of one call."""
    if isinstance(call, TimedElsewhere):
        return call.seconds(batch)
    device = next(iter(batch.values())).device
    wait(device)
    start = time.perf_counter()
    call(**batch)
    wait(device)
    return time.perf_counter() - start


def rounds_in_turn(runs: Sequence[Run], rounds: int, *, warm: int = 1) -> list[list[float]]:
    """Seconds that each model takes in every round, each of them first as often as last.

    Args:
        runs: as for `time_in_turn`.
        rounds: number of rounds.
        warm: rounds before, which do not count.
    """
    for _ in range(warm):
        time_in_turn(runs)
    return [time_in_turn(runs, backwards=number % 2 == 1) for number in range(rounds)]


def wait(device: torch.device) -> None:
    """Waits until a GPU has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
