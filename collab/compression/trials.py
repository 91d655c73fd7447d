"""How many layers to drop, where healing decides it: the likely numbers, healed for a short time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from transformers import PreTrainedModel

from ..planning.allocation import Allocation

Healer = Callable[[PreTrainedModel], None]
"""Heals a model in place, for a short time."""

RECOVERED = 0.45
"""Part of a dropped layer's loss that healing recovers beyond what it recovers of narrower parts, where it is not
tried: the demo checkpoint's, see benchmarks/recovery.py."""

_RECOVERIES = 0.25, 0.65
"""What that part is expected to be between, for any model."""


@dataclass(frozen=True)
class Drop:
    """Widths within a budget, with a certain number of layers dropped.

    Attributes:
        allocation: the widths.
        of_layers: the part of its predicted loss that is that of the dropped layers.
    """

    allocation: Allocation
    of_layers: float

    def loss(self, recovered: float) -> float:
        """The predicted loss after healing that recovers a part of the dropped layers', above that of all parts."""
        return self.allocation.loss - recovered * self.of_layers


def likely(drops: Sequence[Drop]) -> list[Drop]:
    """Those that lose least for some part that healing may recover, in the order of the loss of their dropped layers.

    The losses are straight lines over that part, of which this is the lower envelope.

    Args:
        drops: at least one.
    """
    recovered, most = _RECOVERIES
    best = min(drops, key=lambda drop: (drop.loss(recovered), -drop.of_layers))
    envelope = [best]
    while True:
        crossings = [
            ((drop.allocation.loss - best.allocation.loss) / (drop.of_layers - best.of_layers), -drop.of_layers, place)
            for place, drop in enumerate(drops)
            if drop.of_layers > best.of_layers
        ]
        if not crossings or min(crossings)[0] > most:
            return envelope
        best = drops[min(crossings)[2]]
        envelope.append(best)


def lowest(count: int, start: int, loss: Callable[[int], float]) -> dict[int, float]:
    """The losses of some of the numbers below a count: from a first one, to either side for as long as they fall.

    Args:
        count: number of candidates, in an order in which the losses have one minimum.
        start: the one to begin with.
        loss: measures a candidate.

    Returns:
        The measured losses, by candidate.
    """
    measured = {start: loss(start)}
    for side in (-1, 1):
        place = start
        while 0 <= place + side < count:
            measured[place + side] = loss(place + side)
            if measured[place + side] >= measured[place]:
                break
            place += side
        if place != start:
            break
    return measured
