"""A part of a layer at every width: what it costs, what it is predicted to lose, and its weights."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Narrowed:
    """The weights of a part at some width.

    Attributes:
        tensors: parameters by name, which replace those of the same names.
        removed: prefixes of the names of the parameters that are gone.
        attention: name of the attention layer, if this is a part of one.
        spec: changed entries of its `AttentionSpec`.
        neurons: width of the feed-forward layer, if this is one.
    """

    tensors: Mapping[str, Tensor]
    removed: tuple[str, ...] = ()
    attention: str = ""
    spec: Mapping[str, Any] = field(default_factory=dict)
    neurons: int | None = None

    def to(self, device: torch.device | str) -> Narrowed:
        """The same with its weights on a device."""
        return replace(self, tensors={name: tensor.to(device) for name, tensor in self.tensors.items()})


class Narrowing(ABC):
    """One part of one layer: queries and keys, values and output, or the feed-forward layer."""

    @property
    @abstractmethod
    def widths(self) -> Sequence[int]:
        """The widths to choose from, falling; the first is the original one."""

    @abstractmethod
    def predicted(self, width: int) -> float:
        """The expected squared change of the model's outputs along a random direction, by the statistics.

        Only ratios between widths matter: the change itself is measured at one of them.
        """

    @abstractmethod
    def flops(self, width: int) -> float:
        """FLOPs of the part at a width, for one pass over one row, two for a multiply-add."""

    @abstractmethod
    def parameters(self, width: int) -> float:
        """Number of parameters of the part at a width."""

    def step_parameters(self, width: int) -> float:
        """Number of those that a model reads when it writes one more token."""
        return self.parameters(width)

    @abstractmethod
    def narrow(self, width: int) -> Narrowed:
        """The part at a width below the original one."""


def step_of_head(width: int) -> int:
    """Dimensions between two widths of a head: at most 8, because kernels compute multiples of 8 or 16 anyway."""
    return max(1, min(8, width // 8))


def widths_below(full: int, step: int, least: int) -> list[int]:
    """Widths from `full` down to `least`: `full` itself, and multiples of `step` below it."""
    highest = (full - 1) // step * step
    return [full, *(width for width in range(highest, 0, -step) if width >= least)]
