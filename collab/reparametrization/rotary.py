"""The approximation problem of one attention layer with rotary positions.

The biases of queries and keys are rotated like the rest, so they are one more row of both factors, of an input that is
always 1. With the moments of real inputs both sides are whitened by real matrices, the same for all frequencies.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..decomposition import (
    Factors,
    FormName,
    HeadTensor,
    Solution,
    SolverOptions,
    Whitening,
    decompose_rotary,
    rotary_form_named,
)
from ..decomposition.concat import RotaryConcat
from ..decomposition.options import Content
from ..errors import ConfigurationError
from .layer import LayerProblem
from .moments import LayerMoments


@dataclass(frozen=True)
class RotaryProblem(LayerProblem):
    """As `LayerProblem`, with the complex tensor of every frequency in place of 𝒯; see `collab.decomposition.rotary`.

    Attributes:
        tensor: queries and keys of the heads, (D, K) each, biases as a last row; shared keys repeated.
        key_heads: number of the native layer's keys, each of them for H / `key_heads` heads.
        biased: whether the last row is biases; `key_bias` is as the native layer has it.
    """

    key_heads: int = 1
    biased: bool = False

    def solve(self, form: FormName, rank: int, content: Content, solver: SolverOptions, seed: int = 0) -> Solution:
        """Approximates the layer; arguments as in `reparametrize`, but `seed` is not needed.

        Raises:
            ConfigurationError: for folded content, or the ``tensorly`` method.
        """
        if content == "folded":
            raise ConfigurationError(
                "Layers with rotary positions have no content bias that could be folded, because it rotates with the "
                "positions. Use content='exact' (--content exact)."
            )
        if solver.method != "structured":
            raise ConfigurationError("The tensorly method does not solve layers with rotary positions. Use structured.")
        return super().solve(form, rank, content, solver, seed)

    def _decompose(self, tensor: HeadTensor, form: FormName, rank: int, solver: SolverOptions, seed: int) -> Solution:
        return decompose_rotary(tensor, form, rank, solver, self.biased)

    def _with_content(self, factors: Factors, folded: bool, lossless: bool) -> Factors:
        return factors  # what is constant over the keys rotates with them

    def score_error(self, factors: Factors, moments: LayerMoments) -> float:
        factors, moments = factors.to(self.tensor.query), moments.to(self.tensor.query.device)
        exact = Whitening(moments.metric, damping=0)
        return exact.whiten_factors(factors).relative_error(exact.whiten(self.tensor))

    def decay(self, form: FormName) -> Tensor:
        return rotary_form_named(form).decay(self.whitened)

    def head_decay(self) -> Tensor:
        return RotaryConcat.head_decay(self.whitened)


def rotary_problem(
    query: nn.Linear, key: nn.Linear, num_heads: int, device: torch.device, moments: LayerMoments | None
) -> RotaryProblem:
    """The problem of a native layer's query and key projections."""
    biased = query.bias is not None or key.bias is not None
    columns, heads = [], []
    for projection in (query, key):
        whole = projection.weight.T  # (D, K), or narrower for keys that several heads share
        if biased:
            bias = whole.new_zeros(whole.shape[1]) if projection.bias is None else projection.bias
            whole = torch.cat([whole, bias.unsqueeze(0)])
        by_head = whole.to(device).double().unflatten(1, (-1, query.out_features // num_heads))  # (D, heads, d)
        heads.append(by_head.shape[1])
        columns.append(by_head.repeat_interleave(num_heads // by_head.shape[1], dim=1).flatten(1))
    return RotaryProblem(
        HeadTensor(columns[0], columns[1], num_heads),
        query_bias=None,
        moments=None if moments is None else moments.to(device),
        key_heads=heads[1],
        biased=biased,
        key_bias=None if key.bias is None else key.bias.detach(),
    )
