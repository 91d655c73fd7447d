"""Divides a budget among the parts of all layers: the cheapest widths for the predicted loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from .options import Part

Unit = Literal["flops", "parameters", "seconds"]
Widths = tuple[Mapping[Part, int] | None, ...]
"""By layer, the width of every part that may be narrower; None for a layer that is dropped."""


@dataclass(frozen=True)
class Point:
    """Widths of parts of a layer that are chosen together.

    Attributes:
        widths: R, values of a head, or neurons, by part.
        cost: what the layer costs with these widths less what it costs with the original ones, in the unit of the
            budget.
        loss: predicted loss of this change alone.
    """

    widths: Mapping[Part, int]
    cost: float
    loss: float


Curve = Sequence[Point]
"""Parts of a layer at every width. The first point has the original widths: its cost and loss are 0."""


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
    curves: Sequence[Sequence[Curve]], dropped: Mapping[int, float], cost: float, budget: float, alike: bool
) -> Allocation:
    """Narrows the parts step by step, each time the one that loses least for what it saves.

    On the lower convex hulls of the curves this is optimal for a sum of losses, up to one step.

    Args:
        curves: by layer, a curve for each group of parts whose widths are chosen together.
        dropped: layers to drop, with the loss of each.
        cost: of the model without these layers, the others at their original widths.
        budget: cost at most.
        alike: whether each part is to have one width in all layers.

    Returns:
        The allocation; its cost is above the budget if even the smallest widths are.
    """
    kept = [number for number in range(len(curves)) if number not in dropped]
    groups: list[tuple[list[int], Curve]]
    if alike:
        groups = [(kept, _together(same)) for same in zip(*(curves[number] for number in kept), strict=True)]
    else:
        groups = [([number], curve) for number in kept for curve in curves[number]]
    chosen: dict[int, dict[Part, int]] = {number: {} for number in kept}
    steps: list[tuple[float, int, Point, Point]] = []
    loss = sum(dropped.values())
    for place, (numbers, curve) in enumerate(groups):
        for number in numbers:
            chosen[number] |= curve[0].widths
        for before, after in pairwise(convex_hull(curve)):
            steps.append(((after.loss - before.loss) / (before.cost - after.cost), place, before, after))
    for _, place, before, after in sorted(steps, key=lambda step: step[:2]):
        if cost <= budget:
            break
        for number in groups[place][0]:
            chosen[number] |= after.widths
        cost += after.cost - before.cost
        loss += after.loss - before.loss
    widths = tuple(chosen.get(number) for number in range(len(curves)))
    return Allocation(widths, cost, loss)


def convex_hull(curve: Curve) -> list[Point]:
    """The points of a curve from which no other gives less loss for the same saving, falling in cost."""
    hull = [curve[0]]
    for point in sorted(curve[1:], key=lambda point: (-point.cost, point.loss)):
        if point.cost >= hull[-1].cost:
            continue
        while len(hull) > 1 and _slope(hull[-2], point) <= _slope(hull[-2], hull[-1]):
            hull.pop()
        hull.append(point)
    return hull


def _slope(first: Point, second: Point) -> float:
    return (second.loss - first.loss) / (first.cost - second.cost)


def _together(curves: Sequence[Curve]) -> Curve:
    """The curve of several layers that have the same widths."""
    return [
        Point(points[0].widths, sum(point.cost for point in points), sum(point.loss for point in points))
        for points in zip(*curves, strict=True)
    ]
