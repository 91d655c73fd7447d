"""Narrower queries and keys: the forms of a conversion, at every rank."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, cached_property

import torch
from torch import Tensor, nn

from ..decomposition import FormName, SolverOptions, form_named
from ..decomposition.options import Content
from ..modeling.collab_attention import CollaborativeAttention
from ..models.layers import FACTORS, count_factors
from ..planning.cost import LayerShape
from ..planning.predict import predict
from ..reparametrization.layer import LayerProblem, spec_of, state_of
from .blocks import Block
from .widths import Narrowed, Narrowing, step_of_head, widths_below

_RANKS = (0.5, 0.375, 0.25, 0.1875, 0.125)
"""Ranks to choose from in the cp form, as fractions of K."""


class NarrowQueriesKeys(Narrowing):
    """Queries and keys of an attention layer, in one form.

    Args:
        block: the layer's names.
        layer: the attention layer.
        problem: its approximation problem.
        form: ``concat``, narrower heads, all of one width, which are the cheapest to compute; or ``cp``, shared
            dimensions, which are the smallest.
        length: tokens of a row.
    """

    def __init__(
        self, block: Block, layer: CollaborativeAttention, problem: LayerProblem, form: FormName, length: int
    ) -> None:
        self._block, self._problem, self._form = block, problem, form
        self._like: nn.Linear = layer.query
        self._separate = form_named(form).separate
        self._shape = LayerShape.of(problem)
        self._content: Content = "folded" if self._separate and not self._shape.rotary else "exact"
        self._length = length
        self._full_parameters = count_factors(layer)
        self._solved = cache(self._squared_error)

    @property
    def widths(self) -> Sequence[int]:
        """K, and the ranks below it."""
        full, heads = self._shape.full_rank, self._shape.num_heads
        if self._separate:
            step = step_of_head(full // heads)
            step += step % 2 if self._shape.rotary else 0  # whole complex dimensions
            return [heads * width for width in widths_below(full // heads, step, step)]
        return [full, *(round(part * full) for part in _RANKS)]

    def predicted(self, width: int) -> float:
        """See `Narrowing`: the squared error of the scores relative to all scores."""
        if width == self._shape.full_rank:
            return 0.0
        if self._separate:
            return float(self._decay[width // self._shape.num_heads])
        return self._solved(width)

    def _squared_error(self, rank: int) -> float:
        return predict(self._problem, self._form, rank, self._content, SolverOptions()) ** 2

    def flops(self, width: int) -> float:
        """See `Narrowing`; includes the scores."""
        if width == self._shape.full_rank:
            return self._shape.flops_before(self._length)
        return self._shape.flops(self._form, width, self._content, self._length)

    def parameters(self, width: int) -> float:
        """See `Narrowing`."""
        if width == self._shape.full_rank:
            return self._full_parameters
        return self._shape.parameters(self._form, width, self._content)

    def narrow(self, width: int) -> Narrowed:
        """See `Narrowing`."""
        with torch.no_grad():
            solution = self._problem.solve(self._form, width, self._content, SolverOptions(even_heads=True))
        factors = solution.factors.to(self._like.weight)
        spec = spec_of(factors)
        name = self._block.attention
        changed = {field: getattr(spec, field) for field in ("form", "rank", "head_ranks", "content", "frequencies")}
        removed = tuple(f"{name}.{part}" for part in FACTORS)
        return Narrowed({f"{name}.{key}": tensor for key, tensor in state_of(factors).items()}, removed, changed)

    @cached_property
    def _decay(self) -> Tensor:
        """Relative squared error with each number of dimensions of every head, (d + 1,)."""
        return self._problem.head_decay()
