"""One attention layer's query and key weights, rewritten as shared projections.

Head h scores (x W_Q^h + b_Q^h)(y W_K^h + b_K^h)ᵀ / √d. Over the keys the softmax sees only two of the four terms: the
context x A_h yᵀ and the content y·c_h with c_h = W_K^h b_Q^h. So b_Q becomes the content bias and b_K has no effect
(Cordonnier et al. 2020, section 3.2). The scale stays √d of the original head, whatever R is.

With the moments of real inputs, the scores are approximated instead of the weights: the head tensor is solved in the
metric of the moments, and the content bias corrects the error at the mean query, c_h += (A_h - Â_h)ᵀ μ_h, so that only
the covariance about the mean is left. ``exact`` content stores c_h. ``folded`` content approximates the
query at the mean as one more row of the tensor, so that W̃_K serves it too, and stores an offset u_h with W̃_K u_h ≈ c_h.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional

from ..decomposition import (
    Factors,
    FormName,
    HeadTensor,
    Metric,
    RotaryFactors,
    Solution,
    SolverOptions,
    Whitening,
    decay,
    decompose,
    form_named,
    rotary_form_named,
)
from ..decomposition.concat import Concat
from ..decomposition.options import CONTENTS, Content
from ..decomposition.rank import Rank, resolve_rank
from ..errors import ConfigurationError, ShapeError, WeightsError
from ..modeling.collab_attention import CollaborativeAttention
from ..modeling.collab_config import AttentionSpec
from ..modeling.collab_rotary import CollaborativeRotaryAttention
from ..models.weights import check_cast
from .moments import LayerMoments


def reparametrize(
    query_weight: Tensor,
    query_bias: Tensor | None,
    key_weight: Tensor,
    key_bias: Tensor | None = None,
    *,
    num_heads: int,
    rank: Rank,
    form: FormName = "cp",
    moments: LayerMoments | None = None,
    content: Content = "exact",
    solver: SolverOptions | None = None,
    seed: int = 0,
) -> Solution:
    """Rewrites one layer's query and key projections as collaborative attention.

    Args:
        query_weight: W_Qᵀ as `torch.nn.Linear` stores it, shape (K, D_q).
        query_bias: b_Q, shape (K,), or None.
        key_weight: W_Kᵀ, shape (K, D_k).
        key_bias: b_K, shape (K,), or None. It adds a constant over the keys, which the softmax ignores, so it is
            dropped.
        num_heads: H.
        rank: R from 1 to K, or a fraction of K in (0, 1].
        form: ``concat``, ``cp`` or ``tucker``.
        moments: of the layer's inputs (`collab.calibrate`), to approximate the scores; None to approximate the weights.
        content: ``exact`` or ``folded``.
        solver: solver settings.
        seed: random seed of the ``tensorly`` method.

    Returns:
        Factors in the dtype and on the device of `query_weight`, with their errors.

    Raises:
        ShapeError: if the shapes of the weights, or of the moments, do not fit one attention layer.
        WeightsError: if a weight is NaN or infinite, or a factor does not fit the dtype.
        RankError: as `collab.decomposition.decompose`.
        ConfigurationError: as `collab.decomposition.decompose`.
        DeviceError: as `collab.decomposition.decompose`.
    """
    tensors = {"query_weight": query_weight, "query_bias": query_bias, "key_weight": key_weight, "key_bias": key_bias}
    for name, value in tensors.items():
        if value is not None and not value.isfinite().all():
            raise WeightsError(f"{name} has NaN or infinite entries.")
    if content not in CONTENTS:
        raise ConfigurationError(f"Unknown content {content!r}; choose one of {', '.join(CONTENTS)}.")
    solver = solver or SolverOptions()
    with torch.no_grad():
        device = solver.resolve_device(query_weight.device)
        problem = LayerProblem.of(query_weight, query_bias, key_weight, key_bias, num_heads, device, moments)
        rank = resolve_rank(rank, problem.tensor.full_rank)
        solution = problem.solve(form, rank, content, solver, seed)
        return replace(solution, factors=fitting(solution.factors, query_weight))


def fitting(factors: Factors, like: Tensor, layer: str = "") -> Factors:
    """Casts factors to the dtype and device of a tensor.

    Args:
        factors: the factors.
        like: the tensor.
        layer: the layer's name, for the message.

    Raises:
        WeightsError: if a parameter does not fit the dtype; the message names it.
    """
    cast = factors.to(like)
    prefix = f"{layer}." if layer else ""
    check_cast(*({f"{prefix}{key}": tensor for key, tensor in state_of(each).items()} for each in (factors, cast)))
    return cast


@dataclass(frozen=True)
class LayerProblem:
    """The approximation problem of one layer, in float64: its head tensor and the moments of its inputs.

    Attributes:
        tensor: 𝒯.
        query_bias: b_Q, (K,), or None.
        moments: moments of the layer's inputs, or None to approximate the weights.
        key_bias: b_K, (K,), or None. The softmax ignores it where scores have no positions, so here it only counts as
            parameters.
    """

    tensor: HeadTensor
    query_bias: Tensor | None
    moments: LayerMoments | None
    key_bias: Tensor | None = None

    @classmethod
    def of(
        cls,
        query_weight: Tensor,
        query_bias: Tensor | None,
        key_weight: Tensor,
        key_bias: Tensor | None,
        num_heads: int,
        device: torch.device,
        moments: LayerMoments | None = None,
    ) -> LayerProblem:
        """The problem of weights as `torch.nn.Linear` stores them.

        Raises:
            ShapeError: if the shapes do not fit together.
        """
        query, key = (weight.to(device).double().T.contiguous() for weight in (query_weight, key_weight))  # (D, K)
        biases = {
            name: None if bias is None else bias.to(device).double()  # (K,)
            for name, bias in (("query_bias", query_bias), ("key_bias", key_bias))
        }
        tensor = HeadTensor(query, key, num_heads)
        for name, bias in biases.items():
            if bias is not None and bias.shape != (tensor.full_rank,):
                raise ShapeError(f"{name} must have shape ({tensor.full_rank},), not {tuple(bias.shape)}.")
        problem = cls(tensor, **biases, moments=None if moments is None else moments.to(device))
        if moments is not None:
            widths, heads = (len(moments.query_covariance), len(moments.key_covariance)), len(moments.head_weight)
            if (widths[0], heads, widths[1]) != problem.tensor.shape:
                raise ShapeError(
                    f"The moments are of {heads} heads and inputs of widths {widths}, but the layer has the shape "
                    f"{problem.tensor.shape}."
                )
        return problem

    def solve(self, form: FormName, rank: int, content: Content, solver: SolverOptions, seed: int = 0) -> Solution:
        """Approximates the layer. Arguments as in `reparametrize`."""
        tensor = self.tensor
        lossless, folded = rank == tensor.full_rank, content == "folded"
        if lossless or (self.moments is None and not folded):
            solution = self._decompose(tensor, form, rank, solver, seed)
            factors = solution.factors
        else:
            whitened = self._whitening.whiten(tensor, self._constant(self._query_mean) if folded else None)
            solution = self._decompose(whitened, form, rank, solver, seed)
            factors = self._whitening.unwhiten(solution.factors)
        factors = self._with_content(factors, folded, lossless)
        score_error = None if self.moments is None else self.score_error(factors, self.moments)
        return replace(solution, factors=factors, error=self.error(factors), score_error=score_error)

    def _decompose(self, tensor: HeadTensor, form: FormName, rank: int, solver: SolverOptions, seed: int) -> Solution:
        return decompose(tensor, form, rank, solver, seed)

    def _with_content(self, factors: Factors, folded: bool, lossless: bool) -> Factors:
        """Factors with the content term, if there is any."""
        if self.query_bias is None and (self.moments is None or lossless):
            return factors
        mean = torch.zeros_like(self._query_mean) if lossless else self._query_mean
        corrected = self._content(mean) - at_query(mean, factors)  # (H, D_k)
        if not folded:
            return replace(factors, content_bias=corrected)
        offset = self._lossless_offset(factors) if lossless else self._fold(factors, corrected)
        return replace(factors, query_offset=offset)

    def score_error(self, factors: Factors, moments: LayerMoments) -> float:
        """Relative error of the scores on inputs of the given moments, content included."""
        factors, moments = factors.to(self.tensor.query), moments.to(self.tensor.query.device)
        approximate, content = at_query(moments.query_mean, factors), factors.content
        if content is not None:
            approximate = approximate + content
        return moments.metric.relative_error(self.tensor, factors, self._content(moments.query_mean) - approximate)

    def error(self, factors: Factors) -> float:
        """Relative error of the heads' query-key products."""
        return factors.to(self.tensor.query).relative_error(self.tensor)

    def decay(self, form: FormName) -> Tensor:
        """Relative squared error of the scores at every rank from 0 to K, in closed form; see `decay`."""
        return decay(self.whitened, form)

    def head_decay(self) -> Tensor:
        """Relative squared error of the scores if each head keeps so many dimensions, from none to all, (d + 1,)."""
        return Concat.head_decay(self.whitened)

    @property
    def whitened(self) -> HeadTensor:
        """The head tensor in the basis where the error of the scores is the plain one."""
        return self.tensor if self.moments is None else self._whitening.whiten(self.tensor)

    @cached_property
    def _whitening(self) -> Whitening:
        if self.moments is not None:
            return Whitening(self.moments.metric)
        query, heads, key = self.tensor.shape
        like = self.tensor.query
        return Whitening(Metric(torch.eye(query).to(like), torch.eye(key).to(like), like.new_ones(heads)))

    @property
    def _query_mean(self) -> Tensor:
        if self.moments is not None:
            return self.moments.query_mean
        width, heads, _ = self.tensor.shape
        return self.tensor.query.new_zeros(heads, width)

    def _constant(self, query_mean: Tensor) -> Tensor:
        """The heads' queries at their mean inputs, μ_h W_Q^h + b_Q^h, shape (K,)."""
        by_head = self.tensor.by_head(self.tensor.query.T)  # (H, d, D_q)
        queries = (by_head @ query_mean.unsqueeze(-1)).flatten()  # (K,)
        return queries if self.query_bias is None else queries + self.query_bias

    def _content(self, query_mean: Tensor) -> Tensor:
        """A_hᵀ μ_h + c_h, shape (H, D_k): the content term at the mean query."""
        keys = self.tensor.by_head(self.tensor.key.T)  # (H, d, D_k)
        return (keys * self.tensor.by_head(self._constant(query_mean).unsqueeze(1))).sum(dim=1)

    def _lossless_offset(self, factors: Factors) -> Tensor:
        """At R = K every dimension belongs to one head, and the offset is the query bias itself."""
        bias = self.query_bias if self.query_bias is not None else factors.query.new_zeros(factors.rank)
        if factors.separate:
            return bias.unsqueeze(0)  # (1, K)
        return factors.mixed(bias.expand(factors.num_heads, -1))  # (H, K)

    def _fold(self, factors: Factors, content: Tensor) -> Tensor:
        """The offsets whose content terms W̃_K u_h come nearest to `content`, (H, D_k)."""
        if not factors.separate:
            return self._whitening.fit_keys(factors.key, content.T).T.contiguous()  # (H, R)
        offset = factors.query.new_zeros(1, factors.rank)
        for h, bias in enumerate(content):
            mine = factors.mixing[h] != 0  # (R,)
            if mine.any():
                offset[0, mine] = self._whitening.fit_keys(factors.key[:, mine], bias.unsqueeze(1)).squeeze(1)
        return offset


def at_query(query: Tensor, factors: Factors) -> Tensor:
    """Â_hᵀ x_h for one input of each head, (H, D_q) → (H, D_k)."""
    return factors.mixed(query @ factors.query) @ factors.key.T


def factors_of(layer: CollaborativeAttention) -> Factors:
    """The factors that a layer of a converted model computes."""
    if layer.head_ranks is None:
        mixing = layer.mixing.detach()
    else:
        owner = torch.repeat_interleave(torch.tensor(layer.head_ranks))  # (R,)
        mixing = functional.one_hot(owner, len(layer.head_ranks)).T.to(layer.query.weight)  # (H, R)
    query, key = layer.query.weight.detach().T, layer.key.weight.detach().T  # (D, R)
    if isinstance(layer, CollaborativeRotaryAttention):
        if layer.head_ranks is not None:  # the real parts of all heads come before the imaginary ones
            mixing = mixing[:, ::2].repeat(1, 2)
        biased = layer.query.bias is not None
        if biased:
            query, key = (
                torch.cat([part.weight.detach().T, part.bias.detach().unsqueeze(0)])
                for part in (layer.query, layer.key)
            )
        if layer.spec.key_heads is not None:
            by_key = key.unflatten(1, (2, layer.spec.key_heads, -1))  # (D, 2, keys, r/2)
            key = by_key.repeat_interleave(layer.num_attention_heads // layer.spec.key_heads, dim=2).flatten(1)
        rotary = rotary_form_named(layer.spec.form)
        return rotary(query, key, mixing, frequencies=tuple(layer.frequencies), biased=biased)
    bias, offset, position = layer.content_bias, layer.query_offset, getattr(layer, "position_content", None)
    return form_named(layer.spec.form)(
        query=query,
        key=key,
        mixing=mixing,
        content_bias=None if bias is None else bias.weight.detach(),
        query_offset=None if offset is None else offset.detach(),
        position_content=None if position is None else position.weight.detach(),
    )


def spec_of(factors: Factors) -> AttentionSpec:
    """The spec of the collaborative layer that computes the factors."""
    content = "exact" if factors.content_bias is not None else "none" if factors.query_offset is None else "folded"
    frequencies = factors.frequencies if isinstance(factors, RotaryFactors) else None
    return AttentionSpec(factors.form, factors.rank, factors.head_ranks, content, frequencies=frequencies)


def state_of(factors: Factors) -> dict[str, Tensor]:
    """The query and key parameters of a collaborative layer that computes the factors, by name."""
    biased = isinstance(factors, RotaryFactors) and factors.biased
    state = {}
    for name, part in (("query", factors.query), ("key", factors.key)):  # (D, R)
        state[f"{name}.weight"] = part[: len(part) - biased].T.contiguous()  # (R, D)
        if biased:
            state[f"{name}.bias"] = part[-1].contiguous()  # (R,)
    if not factors.separate:
        state["mixing"] = factors.mixing.contiguous()
    if factors.content_bias is not None:
        state["content_bias.weight"] = factors.content_bias.contiguous()  # (H, D_k)
    if factors.query_offset is not None:
        state["query_offset"] = factors.query_offset.contiguous()
    if factors.position_content is not None:
        state["position_content.weight"] = factors.position_content.contiguous()  # (H, D_q)
    return state
