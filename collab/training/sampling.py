"""The order of the training rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch.utils.data import Sampler

_POOL = 32
"""Steps whose rows are sorted by their length together."""


class LengthSampler(Sampler[int]):
    """Samples rows in random order, with rows of similar length in the same pass to reduce padding.

    Several passes of a step have rows of different lengths, so that its gradient is closer to that of all rows.

    An epoch drops the rows that do not fill a batch, different ones each time. The order depends only on the seed and
    the epoch, not on the number of processes or on earlier steps.

    Args:
        lengths: number of tokens of each row.
        batch_size: rows in a step.
        seed: random seed of the order.
        passes: forward and backward passes of a step that differ in the lengths of their rows.
    """

    def __init__(self, lengths: Sequence[int], batch_size: int, seed: int, passes: int = 1) -> None:
        self._lengths = lengths
        self._batch_size = batch_size
        self._together = batch_size // passes
        self._seed = seed
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch, which determines the order."""
        self._epoch = epoch

    @property
    def steps(self) -> int:
        """Number of batches in an epoch."""
        return max(1, len(self._lengths) // self._batch_size)

    def __len__(self) -> int:
        return min(len(self._lengths), self.steps * self._batch_size)

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self._seed * 1_000_003 + self._epoch)
        order = torch.randperm(len(self._lengths), generator=generator).tolist()[: len(self)]
        pool, size = self._batch_size * _POOL, self._together
        for start in range(0, len(order), pool):
            rows = sorted(order[start : start + pool], key=lambda row: self._lengths[row])
            groups = [rows[first : first + size] for first in range(0, len(rows), size)]
            for number in torch.randperm(len(groups), generator=generator).tolist():
                yield from groups[number]
