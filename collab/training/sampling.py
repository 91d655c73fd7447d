"""The order of the rows in training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch.utils.data import Sampler

_POOL = 32


class LengthSampler(Sampler[int]):
    """Rows in random order, those of like length in the same batch, so that little is padding.

    The order depends on the seed and the epoch alone: not on the number of processes, nor on what ran before.

    Args:
        lengths: tokens of every row.
        batch_size: rows in a step.
        seed: of the order.
    """

    def __init__(self, lengths: Sequence[int], batch_size: int, seed: int) -> None:
        self._lengths = lengths
        self._batch_size = batch_size
        self._seed = seed
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Chooses the order of another pass over the rows."""
        self._epoch = epoch

    def __len__(self) -> int:
        return len(self._lengths)

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self._seed * 1_000_003 + self._epoch)
        order = torch.randperm(len(self._lengths), generator=generator).tolist()
        pool, size = self._batch_size * _POOL, self._batch_size
        for start in range(0, len(order), pool):
            rows = sorted(order[start : start + pool], key=lambda row: self._lengths[row])
            batches = [rows[first : first + size] for first in range(0, len(rows), size)]
            full = [batch for batch in batches if len(batch) == size]
            rest = [row for batch in batches if len(batch) < size for row in batch]
            for number in torch.randperm(len(full), generator=generator).tolist():
                yield from full[number]
            yield from rest  # of the last pool; whatever does not fill a batch comes last
