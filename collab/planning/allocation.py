"""Allocation of a parameter budget to the layers."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from ..decomposition import FormName
from ..reparametrization.layer import LayerProblem
from .cost import LayerShape

_STEPS = 64


def balanced(problems: Mapping[str, LayerProblem], form: FormName, part: float, content: str) -> list[int]:
    """Ranks that minimize the sum of the layers' squared relative errors within a budget for all layers together.

    Every layer's error is relative to its own scores. Weighting layers by the effect of their scores on the model's
    output measured far worse (docs/benchmarks.md). The errors are in closed form (`collab.decomposition.decay`), so no
    solve is needed: greedily, a few dimensions at a time go to the layer that gains most per parameter.

    Args:
        problems: the model's attention layers.
        form: decomposition form of all layers.
        part: fraction of the query/key parameters to keep at most, in (0, 1].
        content: ``exact`` or ``folded``.

    Returns:
        A rank for each layer; all 0 if the budget does not allow rank 1 everywhere.
    """
    shapes, curves = [], []
    for problem in problems.values():
        shapes.append(LayerShape.of(problem))
        with torch.no_grad():
            curves.append(problem.decay(form).tolist())
    budget = part * sum(shape.parameters_before for shape in shapes)
    ranks = [1] * len(shapes)
    left = budget - sum(shape.parameters(form, 1, content) for shape in shapes)
    if left < 0:
        return [0] * len(shapes)
    step = max(1, max(shape.full_rank for shape in shapes) // _STEPS)
    while step:
        best, gain, price = None, 0.0, 0
        for number, (shape, curve, rank) in enumerate(zip(shapes, curves, ranks, strict=True)):
            if rank + step > shape.full_rank:
                continue
            cost = shape.parameters(form, rank + step, content) - shape.parameters(form, rank, content)
            if cost <= left and (best is None or (curve[rank] - curve[rank + step]) / cost > gain):
                best, gain, price = number, (curve[rank] - curve[rank + step]) / cost, cost
        if best is None:
            step //= 2  # spend the rest in smaller steps
        else:
            ranks[best] += step
            left -= price
    return ranks
