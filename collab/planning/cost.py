"""Costs of an attention layer in each form: parameters, arithmetic, time and cache."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from ..decomposition import FormName, form_named, rotary_form_named
from ..modeling.collab_disentangled import PositionTerms
from ..modeling.collab_native import LayerKind
from ..models.layers import AttentionLayer, output_width
from ..reparametrization.disentangled import DisentangledProblem
from ..reparametrization.layer import LayerProblem
from ..reparametrization.rotary import RotaryProblem

# Time of a score and its part of the output, in multiply-adds of a projection: for any width, and for each dimension.
# Fitted to benchmarks/attention.py in float32 on a CPU; what runs when is decided in modeling/collab_kernel.py.
_FUSED = (35.0, 2.2)  # of the padded width
_PLAIN = (70.0, 1.1)  # of the query's and value's widths together


@dataclass(frozen=True)
class LayerShape:
    """The widths of an attention layer.

    Attributes:
        query_width: D_q.
        key_width: D_k.
        num_heads: H.
        head_dim: d.
        biased: whether the original has query biases.
        key_biased: whether it has key biases, too.
        content: whether the converted layer has a content term.
        key_heads: number of the original's keys if heads share them; None for H.
        rotary: whether queries and keys are rotated by their positions. Shared dimensions are then complex, two of R
            for each, and both shared projections have biases if the original has.
        positions: the terms of disentangled positions; None without.
    """

    query_width: int
    key_width: int
    num_heads: int
    head_dim: int
    biased: bool
    key_biased: bool
    content: bool
    key_heads: int | None = None
    rotary: bool = False
    positions: PositionTerms | None = None

    @classmethod
    def of(cls, problem: LayerProblem) -> LayerShape:
        """The shape of a layer's problem."""
        query, heads, key = problem.tensor.shape
        width = problem.tensor.head_dim
        key_biased = problem.key_bias is not None
        if isinstance(problem, RotaryProblem):
            rows = query - problem.biased  # the last one is the bias
            return cls(rows, rows, heads, width, problem.biased, key_biased, False, problem.key_heads, rotary=True)
        biased = problem.query_bias is not None
        terms = problem.terms if isinstance(problem, DisentangledProblem) else None
        content = biased or problem.moments is not None
        return cls(query, key, heads, width, biased, key_biased, content, positions=terms)

    @classmethod
    def of_layer(cls, layer: AttentionLayer) -> LayerShape:
        """The shape of a model's layer, native or converted, with the heads that it has."""
        query, key = (layer.projection(role) if layer.heads else None for role in ("query", "key"))
        # Of a layer without heads, that of the output, which is added to the input.
        query_width, key_width = (
            output_width(layer.output) if each is None else each.in_features for each in (query, key)
        )
        module = layer.converted
        biased = getattr(query, "bias", None) is not None or any(
            getattr(module, name, None) is not None for name in ("content_bias", "query_offset")
        )
        # With rotary positions there is no content, and several heads may share a key, and its values.
        key_heads = None
        if layer.rotary and layer.shares_values:
            key_heads = layer.projection("value").out_features // layer.value_width
        return cls(
            query_width,
            key_width,
            len(layer.heads),
            layer.head_dim,
            biased,
            getattr(key, "bias", None) is not None,
            biased and not layer.rotary,
            key_heads,
            layer.rotary,
            layer.positions,
        )

    @property
    def full_rank(self) -> int:
        """K."""
        return self.num_heads * self.head_dim

    @property
    def ranks(self) -> range:
        """The ranks that a layer can have; even ones if shared dimensions are complex."""
        step = 2 if self.rotary else 1
        return range(step, self.full_rank + 1, step)

    @property
    def parameters_before(self) -> int:
        """Parameters of the original's query and key projections, biases included."""
        return (self.query_width + self.biased) * self.full_rank + (self.key_width + self.key_biased) * self.key_dims

    def parameters(self, form: FormName, rank: int, content: str) -> int:
        """Parameters of the shared projections, M or cores, and the content term."""
        stored = 2 * rank if self.rotary and self.biased else 0
        if self._has_content(rank) and content == "exact":
            stored = self.num_heads * self.key_width
        elif self._has_content(rank):
            stored = rank if form_named(form).separate else self.num_heads * rank
        if self.positions is not None and self.positions.p2c:
            stored += self.num_heads * self.query_width
        return (self.query_width + self.key_width) * rank + self._mixing(form, rank) + stored

    def read_by_a_step(self, form: FormName | None, rank: int, content: str, kind: LayerKind) -> int:
        """Query/key parameters that a token being written reads: of attention to another sequence not those of keys.

        Args:
            form: None for the original.
            rank: R.
            content: as in `parameters`.
            kind: of the layer.
        """
        if form is None:
            cached = (self.key_width + self.key_biased) * self.key_dims
            return self.parameters_before - cached * (kind == "cross")
        cached = self.key_width * self.cached_numbers(rank, content)
        return self.parameters(form, rank, content) - cached * (kind == "cross")

    @property
    def key_dims(self) -> int:
        """Dimensions of the original's keys: K, or fewer if heads share them."""
        return (self.key_heads or self.num_heads) * self.head_dim

    def _mixing(self, form: FormName, rank: int) -> int:
        """Numbers in M or the cores; in cores of rotary positions, at most."""
        named = rotary_form_named if self.rotary else form_named
        return named(form).mixing_parameters(rank, self.num_heads, self.head_dim)

    def rank_within(self, form: FormName, parameters: float, content: str) -> int:
        """The largest rank with at most this many parameters; 0 if there is none."""
        count = bisect_right(self.ranks, parameters, key=lambda rank: self.parameters(form, rank, content))
        return self.ranks[count - 1] if count else 0

    def flops_before(self, length: int) -> int:
        """FLOPs (twice the multiply-adds) of the original's query and key projections and scores, for one sequence."""
        projections = (self.query_width * self.full_rank + self.key_width * self.key_dims) * length
        positions = self._position_work(self.full_rank, self.head_dim, length)
        return 2 * (projections + self.num_heads * length**2 * self.head_dim + positions)

    def flops(
        self,
        form: FormName,
        rank: int,
        content: str,
        length: int,
        keys: int | None = None,
        key_dims: int | None = None,
    ) -> int:
        """FLOPs of a converted layer, mixing and content term included.

        Args:
            form: its form.
            rank: R.
            content: as in `parameters`.
            length: T.
            keys: keys that a token sees; None for all.
            key_dims: dimensions of its keys, fewer than R where heads share them; None for R.
        """
        width = self._head_width(form, rank)
        scores = self.num_heads * length * (keys or length) * width + self._position_work(
            rank, width, length, 2 * length - 1
        )
        return 2 * (self._projections(form, rank, content, length, key_dims) + scores)

    def _position_work(self, rank: int, width: int, length: int, rows: int | None = None) -> int:
        """Multiply-adds of the terms of positions: rows of the relative embedding, projected, times tokens.

        Args:
            rank: width of the projections.
            width: dimensions that a head's scores are sums over.
            length: T.
            rows: number of rows that are used, at most all; None for all, which the original always projects.
        """
        if self.positions is None:
            return 0
        every = 2 * self.positions.span
        used = every if rows is None else min(rows, every)
        once = used * (self.query_width * rank + self.num_heads * length * width)
        return (self.positions.c2p + self.positions.p2c) * once

    def _head_width(self, form: FormName, rank: int) -> int:
        """Dimensions that a head's scores are sums over."""
        return -(-rank // self.num_heads) if form_named(form).separate else rank

    def _projections(self, form: FormName, rank: int, content: str, length: int, key_dims: int | None = None) -> int:
        """Multiply-adds of the shared projections, mixing and content term; arguments as of `flops`."""
        work = (self.query_width * rank + self.key_width * (rank if key_dims is None else key_dims)) * length
        work += self._mixing(form, rank) * length * (2 if self.rotary else 1)  # a complex product is four real ones
        if self._has_content(rank) and content == "exact":
            work += self.num_heads * self.key_width * length
        return work

    def time_before(self, length: int) -> float:
        """Estimated time on a CPU of the original's query, key and value projections and attention, for one sequence.

        The unit is the time of one multiply-add of a projection.
        """
        projections = (self.query_width * self.full_rank + 2 * self.key_width * self.key_dims) * length
        positions = self._position_work(self.full_rank, self.head_dim, length)
        return projections + self.num_heads * length**2 * self._score_time(self.head_dim) + positions

    def time(self, form: FormName, rank: int, content: str, length: int) -> float:
        """Estimated time of a converted layer, in the unit of `time_before`."""
        projections = self._projections(form, rank, content, length) + self.key_width * self.key_dims * length
        width = self._head_width(form, rank)
        positions = self._position_work(rank, width, length, 2 * length - 1)
        return projections + self.num_heads * length**2 * self._score_time(width) + positions

    def _score_time(self, width: int) -> float:
        if width <= self.head_dim:
            return _FUSED[0] + _FUSED[1] * self.head_dim
        return _PLAIN[0] + _PLAIN[1] * (width + self.head_dim)

    def cached_numbers(self, rank: int, content: str) -> int:
        """Numbers per token in a cache of keys, whatever the form, and of the content biases beside them."""
        return rank + (self.num_heads if self._has_content(rank) and content == "exact" else 0)

    def _has_content(self, rank: int) -> bool:
        """Whether the converted layer has a content term; without biases the exact one, of rank K, needs none."""
        return self.content and (self.biased or rank < self.full_rank)
