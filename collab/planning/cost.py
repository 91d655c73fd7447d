"""Costs of an attention layer in each form: parameters, arithmetic, time and cache."""

from __future__ import annotations

from dataclasses import dataclass

from ..decomposition import Form
from ..reparametrization.layer import LayerProblem

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
        biased: whether the original has query and key biases.
        content: whether the converted layer has a content term.
    """

    query_width: int
    key_width: int
    num_heads: int
    head_dim: int
    biased: bool
    content: bool

    @classmethod
    def of(cls, problem: LayerProblem) -> LayerShape:
        """The shape of a layer's problem."""
        query, heads, key = problem.tensor.shape
        biased = problem.query_bias is not None
        return cls(query, key, heads, problem.tensor.head_dim, biased, biased or problem.moments is not None)

    @property
    def full_rank(self) -> int:
        """K."""
        return self.num_heads * self.head_dim

    @property
    def parameters_before(self) -> int:
        """Parameters of the original's query and key projections, biases included."""
        return (self.query_width + self.key_width + 2 * self.biased) * self.full_rank

    def parameters(self, form: Form, rank: int, content: str) -> int:
        """Parameters of the shared projections, M or cores, and the content term."""
        mixing = {"concat": 0, "cp": self.num_heads * rank, "tucker": self.num_heads * rank**2}[form]
        stored = 0
        if self.content and content == "exact":
            stored = self.num_heads * self.key_width
        elif self.content:
            stored = rank if form == "concat" else self.num_heads * rank
        return (self.query_width + self.key_width) * rank + mixing + stored

    def rank_within(self, form: Form, parameters: float, content: str) -> int:
        """The largest rank with at most this many parameters; 0 if there is none."""
        low, high = 0, self.full_rank
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.parameters(form, middle, content) <= parameters else (low, middle - 1)
        return low

    def flops_before(self, length: int) -> int:
        """FLOPs (twice the multiply-adds) of the original's query and key projections and scores, for one sequence."""
        projections = (self.query_width + self.key_width) * self.full_rank * length
        return 2 * (projections + self.num_heads * length**2 * self.head_dim)

    def flops(self, form: Form, rank: int, content: str, length: int) -> int:
        """FLOPs of a converted layer, mixing and content term included."""
        scores = self.num_heads * length**2 * self._head_width(form, rank)
        return 2 * (self._projections(form, rank, content, length) + scores)

    def _head_width(self, form: Form, rank: int) -> int:
        """Dimensions that a head's scores are sums over."""
        return -(-rank // self.num_heads) if form == "concat" else rank

    def _projections(self, form: Form, rank: int, content: str, length: int) -> int:
        """Multiply-adds of the shared projections, mixing and content term."""
        work = (self.query_width + self.key_width) * rank * length
        work += {"concat": 0, "cp": self.num_heads * rank, "tucker": self.num_heads * rank**2}[form] * length
        if self.content and content == "exact":
            work += self.num_heads * self.key_width * length
        return work

    def time_before(self, length: int) -> float:
        """Estimated time on a CPU of the original's query, key and value projections and attention, for one sequence.

        The unit is the time of one multiply-add of a projection.
        """
        projections = (self.query_width + 2 * self.key_width) * self.full_rank * length
        return projections + self.num_heads * length**2 * self._score_time(self.head_dim)

    def time(self, form: Form, rank: int, content: str, length: int) -> float:
        """Estimated time of a converted layer, in the unit of `time_before`."""
        projections = self._projections(form, rank, content, length) + self.key_width * self.full_rank * length
        return projections + self.num_heads * length**2 * self._score_time(self._head_width(form, rank))

    def _score_time(self, width: int) -> float:
        if width <= self.head_dim:
            return _FUSED[0] + _FUSED[1] * self.head_dim
        return _PLAIN[0] + _PLAIN[1] * (width + self.head_dim)

    def cached_numbers(self, rank: int, content: str) -> int:
        """Numbers per token in a cache of keys: one key for all heads, whatever the form, and the content biases."""
        return rank + (self.num_heads if self.content and content == "exact" else 0)
