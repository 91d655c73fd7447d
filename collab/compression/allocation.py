"""Divides a budget among the parts of all layers: the cheapest widths for the predicted loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from .options import Part

Unit = Literal["flops", "parameters"]
Widths = tuple[Mapping[Part, int] | None, ...]
"""By layer, the width of every part that may be narrower; None for a layer that is dropped."""


@dataclass(frozen=True)
class Point:
    """One width of one part.

    Attributes:
        width: R, values of a head, or neurons.
        cost: in the unit of the budget.
        loss: predicted loss of this change alone.
    """

    width: int
    cost: float
    loss: float


Curve = Sequence[Point]
"""A part at every width, falling from the original one, whose loss is 0."""


@dataclass(frozen=True)
class Allocation:
    """Widths within a budget.

    Attributes:
        widths: see `Widths`.
        cost: of what is left, in the unit of the budget.
        loss: predicted loss, the sum over all changes.
    """

    widths: Widths
    cost: float
    loss: float


def allocate(
    curves: Sequence[Mapping[Part, Curve]], dropped: Mapping[int, float], fixed: float, budget: float, alike: bool
) -> Allocation:
    """Narrows the parts step by step, each time the one that loses least for what it saves.

    On the lower convex hulls of the curves this is optimal for a sum of losses, up to one step.

    Args:
        curves: by layer, the curve of every part that may be narrower.
        dropped: layers to drop, with the loss of each.
        fixed: cost of the parts that may not be narrower.
        budget: cost at most.
        alike: whether each part is to have one width in all layers.

    Returns:
        The allocation; its cost is above the budget if even the smallest widths are.
    """
    kept = [number for number in range(len(curves)) if number not in dropped]
    groups: list[tuple[list[int], Part, Curve]]
    if alike:
        parts: list[Part] = list(curves[kept[0]]) if kept else []
        groups = [(kept, part, _together([curves[number][part] for number in kept])) for part in parts]
    else:
        groups = [([number], part, curve) for number in kept for part, curve in curves[number].items()]
    chosen: dict[int, dict[Part, int]] = {number: {} for number in kept}
    steps: list[tuple[float, int, Point, Point]] = []
    cost, loss = fixed, sum(dropped.values())
    for place, (numbers, part, curve) in enumerate(groups):
        cost += curve[0].cost
        for number in numbers:
            chosen[number][part] = curve[0].width
        hull = convex_hull(curve)
        for before, after in pairwise(hull):
            steps.append(((after.loss - before.loss) / (before.cost - after.cost), place, before, after))
    for _, place, before, after in sorted(steps, key=lambda step: step[:2]):
        if cost <= budget:
            break
        numbers, part, _ = groups[place]
        for number in numbers:
            chosen[number][part] = after.width
        cost += after.cost - before.cost
        loss += after.loss - before.loss
    widths = tuple(chosen.get(number) for number in range(len(curves)))
    return Allocation(widths, cost, loss)


def convex_hull(curve: Curve) -> list[Point]:
    """The points of a curve from which no other gives less loss for the same saving, falling in cost."""
    hull = [curve[0]]
    for point in sorted(curve[1:], key=lambda point: -point.cost):
        if point.cost >= hull[-1].cost:
            continue
        while len(hull) > 1 and _slope(hull[-2], point) <= _slope(hull[-2], hull[-1]):
            hull.pop()
        hull.append(point)
    return hull


def _slope(first: Point, second: Point) -> float:
    return (second.loss - first.loss) / (first.cost - second.cost)


def _together(curves: Sequence[Curve]) -> Curve:
    """The curve of several layers that have the same width."""
    return [
        Point(points[0].width, sum(point.cost for point in points), sum(point.loss for point in points))
        for points in zip(*curves, strict=True)
    ]
