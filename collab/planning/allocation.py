"""Divides a budget among the parts of all layers: the cheapest widths for the predicted loss."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

from .budget import Part

Widths = tuple[Mapping[Part, int] | None, ...]
"""By layer, the width of every part that may be narrower; None for a layer that is dropped."""


@dataclass(frozen=True)
class Point:
    """Widths of parts of a layer that are chosen together.

    Attributes:
        widths: R, values of a head, or neurons, by part.
        cost: what the layer costs with these widths less what it costs with the largest ones, in the unit of the
            budget.
        loss: predicted loss of this change alone.
    """

    widths: Mapping[Part, int]
    cost: float
    loss: float


Curve = Sequence[Point]
"""Parts of a layer at every width. The first point has the largest widths: its cost and loss are 0."""


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


@dataclass(frozen=True)
class Costs:
    """Costs of the layers at any widths, in one unit: counted or measured.

    Attributes:
        whole: cost of the original.
        full: cost of its conversion at the largest widths, which narrower models are made from.
        layer: cost of a layer, by its number; parts that are not named have their largest widths.
    """

    whole: float
    full: float
    layer: Callable[[int, Mapping[Part, int]], float]

    def left(self, widths: Widths) -> float:
        """Cost of the model at some widths."""
        cost = self.full
        for number, chosen in enumerate(widths):
            cost += (0.0 if chosen is None else self.layer(number, chosen)) - self.layer(number, {})
        return cost

    def curve(self, number: int, losses: Mapping[Part, Mapping[int, float]]) -> Curve:
        """Parts of a layer at all widths, from the loss of each at each of its widths."""
        full = self.layer(number, {})
        points = []
        for chosen in itertools.product(*losses.values()):
            widths = dict(zip(losses, chosen, strict=True))
            loss = sum(losses[part][width] for part, width in widths.items())
            points.append(Point(widths, self.layer(number, widths) - full, loss))
        return points


def allocate(
    curves: Sequence[Sequence[Curve]],
    dropped: Mapping[int, float],
    cost: float,
    budget: float,
    *,
    alike: Sequence[Sequence[int]] = (),
    exhaust: bool = False,
) -> Allocation:
    """Narrows the parts step by step, each time the one that loses least for what it saves.

    On the lower convex hulls of the curves this is optimal for a sum of losses, up to one step.

    Args:
        curves: by layer, a curve for each group of parts whose widths are chosen together.
        dropped: layers to drop, with the loss of each.
        cost: of the model without these layers, the others at their largest widths.
        budget: cost at most.
        alike: groups of layers in each of which a part is to have one width; none if every layer has its own.
        exhaust: whether to look for the best last step, and to spend what it leaves of the budget on any part that it
            is enough for.

    Returns:
        The allocation; its cost is above the budget if even the smallest widths are.
    """
    kept = [number for number in range(len(curves)) if number not in dropped]
    groups: list[tuple[list[int], Curve]]
    if alike:
        together = [[number for number in numbers if number not in dropped] for numbers in alike]
        groups = [
            (numbers, _sum(same))
            for numbers in together
            for same in zip(*(curves[number] for number in numbers), strict=True)
        ]
    else:
        groups = [([number], curve) for number in kept for curve in curves[number]]
    chosen = [curve[0] for _, curve in groups]
    loss = sum(dropped.values())
    steps = [
        (_slope(before, after), place, before, after)
        for place, (_, curve) in enumerate(groups)
        for before, after in itertools.pairwise(convex_hull(curve))
    ]
    for _, place, before, after in sorted(steps, key=lambda step: step[:2]):
        if cost <= budget:
            break
        end = [*chosen[:place], after, *chosen[place + 1 :]]
        if exhaust and cost + after.cost - before.cost <= budget:
            end = _best_end([curve for _, curve in groups], chosen, cost - budget)
        cost += sum(new.cost - old.cost for new, old in zip(end, chosen, strict=True))
        loss += sum(new.loss - old.loss for new, old in zip(end, chosen, strict=True))
        chosen = end
    widths: dict[int, dict[Part, int]] = {number: {} for number in kept}
    for (numbers, _), point in zip(groups, chosen, strict=True):
        for number in numbers:
            widths[number] |= point.widths
    return Allocation(tuple(widths.get(number) for number in range(len(curves))), cost, loss)


def _best_end(curves: Sequence[Curve], chosen: list[Point], excess: float) -> list[Point]:
    """The least loss of all single steps that save an excess, what each saves beyond it spent on wider parts."""
    rising = [sorted(curve, key=attrgetter("cost")) for curve in curves]
    ends = []
    for place, (points, point) in enumerate(zip(rising, chosen, strict=True)):
        number = bisect_right(points, point.cost - excess, key=attrgetter("cost"))
        if number:
            after = points[number - 1]
            left = point.cost - after.cost - excess
            ends.append(_widened(rising, [*chosen[:place], after, *chosen[place + 1 :]], left))
    return min(ends, key=lambda points: sum(point.loss for point in points))


def _widened(rising: Sequence[Curve], chosen: list[Point], left: float) -> list[Point]:
    """Spends what is left of a budget, each time on the part that gains most for what it costs."""
    while True:
        gains: list[tuple[float, int, Point]] = []
        for place, (points, point) in enumerate(zip(rising, chosen, strict=True)):
            low, high = (bisect_right(points, point.cost + more, key=attrgetter("cost")) for more in (0, left))
            gains += [((point.loss - new.loss) / (new.cost - point.cost), place, new) for new in points[low:high]]
        if not gains:
            return chosen
        _, place, wider = max(gains, key=lambda gain: gain[0])
        left -= wider.cost - chosen[place].cost
        chosen = [*chosen[:place], wider, *chosen[place + 1 :]]


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


def _sum(curves: Sequence[Curve]) -> Curve:
    """The curve of several layers that have the same widths."""
    return [
        Point(points[0].widths, sum(point.cost for point in points), sum(point.loss for point in points))
        for points in zip(*curves, strict=True)
    ]
