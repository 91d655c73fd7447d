"""Narrower queries and keys: the forms of a conversion, at every rank."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, cached_property

import torch
from torch import Tensor, nn

from ..decomposition import FormName, SolverOptions, form_named
from ..decomposition.options import NATIVE_FORM, Content
from ..decomposition.rotary_factors import by_frequency, pair_energy
from ..modeling.collab_attention import CollaborativeAttention
from ..models.layers import FACTORS, count_factors, count_parameters
from ..planning.cost import LayerShape
from ..planning.predict import predict
from ..reparametrization.layer import LayerProblem, spec_of, state_of
from ..reparametrization.rotary import RotaryProblem
from .blocks import Attention
from .widths import Narrowed, Narrowing, step_of_head, widths_below

_RANKS = (0.5, 0.375, 0.25, 0.1875, 0.125)
"""Ranks to choose from in the cp form, as fractions of K."""


class NarrowSharedKeys(Narrowing):
    """Queries and keys with rotary positions whose keys several heads share: each key keeps some frequencies.

    They are those of the most energy of the scores of all heads that read the key, in the metric of the moments.

    Args:
        attention: the layer's names.
        layer: the attention layer.
        problem: its approximation problem.
        length: tokens of a row.
    """

    def __init__(
        self, attention: Attention, layer: CollaborativeAttention, problem: RotaryProblem, length: int
    ) -> None:
        self._attention, self._problem, self._length = attention, problem, length
        self._like: nn.Linear = layer.query
        self._shape = LayerShape.of(problem)

    @property
    def widths(self) -> Sequence[int]:
        """K, and whole frequencies below it."""
        heads, head_dim = self._shape.num_heads, self._shape.head_dim
        step = step_of_head(head_dim)
        return [heads * width for width in widths_below(head_dim, step + step % 2, step + step % 2)]

    def predicted(self, width: int) -> float:
        """See `Narrowing`."""
        energy = self._energy.sort(dim=0, descending=True).values.sum(dim=1)  # (F,)
        return float(energy[width // self._shape.num_heads // 2 :].sum() / energy.sum().clamp(min=1e-30))

    def flops(self, width: int) -> float:
        """See `Narrowing`; includes the scores."""
        return 2 * (self._weights(width) * self._length + width * self._length**2)

    def parameters(self, width: int) -> float:
        """See `Narrowing`."""
        return self._weights(width) + (self._shape.biased * (width + self._keys_of(width)))

    def _weights(self, width: int) -> int:
        return self._shape.query_width * width + self._shape.key_width * self._keys_of(width)

    def _keys_of(self, width: int) -> int:
        return width // self._shape.num_heads * self._problem.key_heads

    def narrow(self, width: int) -> Narrowed:
        """See `Narrowing`; the original width gives the original weights."""
        heads, keys, head_dim = self._shape.num_heads, self._problem.key_heads, self._shape.head_dim
        owned = width // heads // 2
        kept = self._energy.topk(owned, dim=0).indices.sort(dim=0).values.T  # (keys, owned)
        by_head = kept.repeat_interleave(heads // keys, dim=0).cpu()  # (H, owned)
        columns = torch.arange(heads).unsqueeze(1) * head_dim + by_head  # of the real parts
        first = columns[:: heads // keys]
        tensors = {}
        sides = (("query", self._problem.tensor.query, columns), ("key", self._problem.tensor.key, first))
        for name, side, real in sides:
            rows = torch.cat([real.flatten(), real.flatten() + head_dim // 2]).to(side.device)
            part = side[:, rows].to(self._like.weight)  # (D, R), with a last row of biases
            weight = part[:-1] if self._shape.biased else part
            tensors[f"{self._attention.name}.{name}.weight"] = weight.T.contiguous()
            if self._shape.biased:
                tensors[f"{self._attention.name}.{name}.bias"] = part[-1].contiguous()
        changed = {
            "form": NATIVE_FORM,
            "rank": width,
            "head_ranks": (2 * owned,) * heads,
            "content": "none",
            "frequencies": tuple(by_head.flatten().tolist()),
            "key_heads": keys,
        }
        return Narrowed(tensors, attention=self._attention.name, spec=changed)

    @cached_property
    def _energy(self) -> Tensor:
        """Energy of the scores in each frequency of each key, (F, keys)."""
        of_heads = pair_energy(*by_frequency(self._problem.whitened))  # (F, H)
        return of_heads.unflatten(1, (self._problem.key_heads, -1)).sum(dim=2)


class NarrowQueriesKeys(Narrowing):
    """Queries and keys of an attention layer, in one form.

    Args:
        attention: the layer's names.
        layer: the attention layer.
        problem: its approximation problem.
        form: ``concat``, narrower heads, all of one width, which are the cheapest to compute; or ``cp``, shared
            dimensions, which are the smallest.
        length: tokens of a row.
    """

    def __init__(
        self, attention: Attention, layer: CollaborativeAttention, problem: LayerProblem, form: FormName, length: int
    ) -> None:
        self._attention, self._problem, self._form = attention, problem, form
        self._like: nn.Linear = layer.query
        self._separate = form_named(form).separate
        self._shape = LayerShape.of(problem)
        self._content: Content = "folded" if self._separate and not self._shape.rotary else "exact"
        self._length = length
        self._full_parameters = count_factors(layer)
        self._full_keys = count_parameters(layer.key) + count_parameters(layer.content_bias)
        self._solved = cache(self._squared_error)

    @property
    def widths(self) -> Sequence[int]:
        """K, and the ranks below it."""
        full, heads = self._shape.full_rank, self._shape.num_heads
        if self._separate:
            step = step_of_head(full // heads)
            step += step % 2 if self._shape.rotary else 0  # whole complex dimensions
            return [heads * width for width in widths_below(full // heads, step, step)]
        step = self._shape.ranks.step
        return [full, *(max(step, round(part * full) // step * step) for part in _RANKS)]

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

    def step_parameters(self, width: int) -> float:
        """See `Narrowing`: the keys of another sequence are there from the first step on."""
        if self._attention.kind != "cross":
            return self.parameters(width)
        if width == self._shape.full_rank:
            return self._full_parameters - self._full_keys
        biases = self._shape.num_heads if self._shape.content and self._content == "exact" else 0
        return self.parameters(width) - self._shape.key_width * (width + biases)

    def narrow(self, width: int) -> Narrowed:
        """See `Narrowing`."""
        with torch.no_grad():
            solution = self._problem.solve(self._form, width, self._content, SolverOptions(even_heads=True))
        factors = solution.factors.to(self._like.weight)
        spec = spec_of(factors)
        name = self._attention.name
        changed = {field: getattr(spec, field) for field in ("form", "rank", "head_ranks", "content", "frequencies")}
        removed = tuple(f"{name}.{part}" for part in FACTORS)
        return Narrowed({f"{name}.{key}": tensor for key, tensor in state_of(factors).items()}, removed, name, changed)

    @cached_property
    def _decay(self) -> Tensor:
        """Relative squared error with each number of dimensions of every head, (d + 1,)."""
        return self._problem.head_decay()
