"""The moments of one attention layer's inputs that a conversion needs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from ..decomposition import Metric
from ..modeling.collab_disentangled import PositionTerms, RelativePositions
from ..processes import summed


@dataclass(frozen=True)
class LayerMoments:
    """Output-weighted first and second moments of a layer's queries and keys, in float64.

    A change δs_h(t, s) of the scores of head h moves the model's output, in a random direction g, by
    Σ_{t,s} e_h(t, s) δs_h(t, s) with e_h the gradient of g·output. With δs_h(t, s) = x_t ΔA_h y_sᵀ that is
    Σ_t x_t ΔA_h u_{h,t}ᵀ, where u_{h,t} = Σ_s e_h(t, s) y_s. So the keys enter as u, and a query counts as much as its
    ‖u_{h,t}‖². Because e sums to zero over the keys, what is constant over them drops out by itself.

    Attributes:
        query_mean: μ_h = E[‖u_h‖² x] / E[‖u_h‖²], shape (H, D_q); the content bias takes it out of the error.
        query_covariance: Σ_q, the covariance of the queries about their heads' means with the same weights, (D_q, D_q).
        key_covariance: Σ_k = E[Σ_h u_h u_hᵀ], shape (D_k, D_k).
        head_weight: w_h = E‖u_h‖², shape (H,): how much the model's output depends on the scores of head h. It is
            absolute, so it can be compared between layers.
        tokens: number of query tokens.
        unknown: whether the output did not depend on the scores at all, in a pass of the layer; the covariances are
            then the identity.
        key_mean: ν_h, (H, D_k), of a layer whose queries are also positions; see `DisentangledAccumulator`.
    """

    query_mean: Tensor
    query_covariance: Tensor
    key_covariance: Tensor
    head_weight: Tensor
    tokens: int
    unknown: bool = False
    key_mean: Tensor | None = None

    def to(self, device: torch.device) -> LayerMoments:
        """These moments on a device."""
        return self.from_tensors({name: tensor.to(device) for name, tensor in self.tensors().items()})

    @property
    def metric(self) -> Metric:
        """The metric that these moments put on the head tensor."""
        return Metric(self.query_covariance, self.key_covariance, self.head_weight)

    @property
    def deficient(self) -> bool:
        """Whether there were too few tokens for covariances of full rank."""
        return self.tokens <= max(self.query_covariance.shape[0], self.key_covariance.shape[0])

    def tensors(self) -> dict[str, Tensor]:
        """All attributes as tensors, to save."""
        return {name: torch.as_tensor(value) for name, value in vars(self).items() if value is not None}

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor]) -> LayerMoments:
        """The moments from the result of `tensors`."""
        return cls(
            tensors["query_mean"],
            tensors["query_covariance"],
            tensors["key_covariance"],
            tensors["head_weight"],
            int(tensors["tokens"]),
            bool(tensors.get("unknown", False)),  # older caches lack it
            tensors.get("key_mean"),
        )


class Accumulator:
    """Accumulates a layer's moments over batches and passes, in float64 and constant memory.

    Attributes:
        tokens: number of query tokens so far.
    """

    def __init__(self, query_width: int, key_width: int, num_heads: int, device: torch.device) -> None:
        def zeros(*shape: int) -> Tensor:
            return torch.zeros(*shape, dtype=torch.float64, device=device)

        self._query = zeros(query_width, query_width)
        self._key = zeros(key_width, key_width)
        self._mean = zeros(num_heads, query_width)
        self._weight = zeros(num_heads)
        self.tokens = 0

    def add(
        self,
        queries: Tensor,
        keys: Tensor,
        gradients: Tensor,
        tokens: int,
        generator: torch.Generator,
        positions: RelativePositions | None = None,
    ) -> None:
        """Adds one pass over one batch.

        Args:
            queries: x, (B, T, D_q).
            keys: y, (B, S, D_k).
            gradients: e, (B, H, T, S), zero where a token is padding.
            tokens: number of query tokens that are not padding.
            generator: random generator of the signs that replace a sum over heads.
            positions: of layers with disentangled positions.
        """
        batch, heads, _, _ = gradients.shape
        gram = keys @ keys.mT  # (B, S, S)
        weight = ((gradients @ gram.unsqueeze(1)) * gradients).sum(dim=-1).clamp(min=0)  # (B, H, T), ‖u_{h,t}‖²
        # With random signs σ, E[(Σ_h σ_h u_h)(Σ_h σ_h u_h)ᵀ] = Σ_h u_h u_hᵀ, at the cost of one head.
        signs = torch.randint(0, 2, (batch, heads, 1, 1), generator=generator).to(gradients) * 2 - 1
        mixed = ((gradients * signs).sum(dim=1) @ keys).flatten(0, 1)  # (B·T, D_k)
        self._key += mixed.mT @ mixed
        rows = queries.flatten(0, 1)  # (B·T, D_q)
        self._query += (rows * weight.sum(dim=1).view(-1, 1)).mT @ rows
        by_head = weight.transpose(0, 1).flatten(1)  # (H, B·T)
        self._mean += by_head @ rows
        self._weight += by_head.sum(dim=1).double()
        self.tokens += tokens

    def add_other_processes(self, owner: int | None = None) -> None:
        """Adds what the accumulators of the other processes have, which all call this.

        Args:
            owner: the process that needs the sums; those of the others are then of no use. None for all.
        """
        tokens = torch.tensor(self.tokens)
        for sums in (self._query, self._key, self._mean, self._weight, tokens):
            summed(sums, owner)
        self.tokens = int(tokens)

    def merge(self, other: Accumulator) -> None:
        """Adds what another accumulator of the same shape has."""
        for name in ("_query", "_key", "_mean", "_weight"):
            getattr(self, name).add_(getattr(other, name))
        self.tokens += other.tokens

    def kept_in(self, file: Path) -> Accumulator:
        """The same, still empty, with its matrices in a file that is mapped into memory.

        The system writes what was added there and takes the memory back when it needs it.
        """
        self._query, self._key = (
            _mapped(sums.shape, file.with_name(f"{file.name}.{part}"))
            for part, sums in (("query", self._query), ("key", self._key))
        )
        return self

    def another(self) -> Accumulator:
        """An empty accumulator of the same shape."""
        return type(self)(len(self._query), len(self._key), len(self._weight), self._query.device)

    def finish(self) -> LayerMoments:
        """The moments of everything added. They reuse the memory of the sums, so nothing can be added afterwards.

        They are the identity if the model's output does not depend on the layer's scores.
        """
        total = self._weight.sum()
        if self.tokens == 0 or not total > 0:
            return LayerMoments(
                query_mean=torch.zeros_like(self._mean),
                query_covariance=torch.eye(len(self._query), dtype=torch.float64, device=self._query.device),
                key_covariance=torch.eye(len(self._key), dtype=torch.float64, device=self._key.device),
                head_weight=torch.ones_like(self._weight),
                tokens=self.tokens,
                unknown=True,
            )
        mean = self._mean.div_(self._weight.clamp(min=torch.finfo(torch.float64).tiny).unsqueeze(1))  # (H, D_q)
        return LayerMoments(
            query_mean=mean,
            query_covariance=self._query.addmm_(mean.mT * self._weight, mean, alpha=-1).div_(total),
            key_covariance=self._key.div_(self.tokens),
            head_weight=self._weight / self.tokens,
            tokens=self.tokens,
        )


class RotaryAccumulator(Accumulator):
    """Accumulates the moments of a layer with rotary positions.

    Its keys are rotated by angles that depend on their distance, so Σ_s e_h(t, s) δs_h(t, s) is a sum of terms whose
    phases are taken as independent: its expected square is ½ Σ_s e_h(t, s)² ‖x_t ΔT y_s^H‖². Keys therefore enter by
    their raw second moment, each weighted by Σ_{h,t} e², and a query counts as much as its Σ_s e² ‖y_s‖². What is
    constant over the keys does not stay so, and what the queries have in common cannot be taken out by a bias, so no
    mean is taken out. A layer with biases has inputs with a last entry of 1.
    """

    def add(
        self,
        queries: Tensor,
        keys: Tensor,
        gradients: Tensor,
        tokens: int,
        generator: torch.Generator,
        positions: RelativePositions | None = None,
    ) -> None:
        queries, keys = (_widened(rows, len(self._query)) for rows in (queries, keys))
        squares = gradients.square()  # (B, H, T, S)
        rows = keys.flatten(0, 1)  # (B·S, D)
        self._key += (rows * squares.sum(dim=(1, 2)).view(-1, 1)).mT @ rows
        weight = (squares @ keys.square().sum(dim=-1)[:, None, :, None]).squeeze(-1)  # (B, H, T)
        rows = queries.flatten(0, 1)
        self._query += (rows * weight.sum(dim=1).view(-1, 1)).mT @ rows
        self._weight += weight.sum(dim=(0, 2)).double()
        self.tokens += tokens


class DisentangledAccumulator(Accumulator):
    """Accumulates the moments of a layer with disentangled positions, whose rows p are queries and keys too.

    A change of the scores moves the output by two sums. Tokens as queries give Σ_t x_t ΔA_h u_{h,t}ᵀ, with
    u_{h,t} = Σ_s e_h(t, s) (y_s + p_{j(t,s)}), the latter with the term ``c2p``: the moments of `Accumulator`, with
    the rows as further keys. The term ``p2c`` gives Σ_s v_{h,s} ΔA_h y_sᵀ, with v_{h,s} = Σ_t e_h(t, s) p_{j(t,s)}:
    the same with the sides exchanged. So a row counts as often as its offset occurs, and by its effect on the output.
    Of the sum of both energies the nearest product Σ_q ⊗ Σ_k by partial traces is taken.

    Args:
        query_width: D.
        key_width: D.
        num_heads: H.
        device: device of the sums.
        terms: the terms of positions.
    """

    def __init__(
        self, query_width: int, key_width: int, num_heads: int, device: torch.device, terms: PositionTerms
    ) -> None:
        super().__init__(query_width, key_width, num_heads, device)
        self._terms = terms
        self._exchanged = Accumulator(key_width, query_width, num_heads, device) if terms.p2c else None

    def add(
        self,
        queries: Tensor,
        keys: Tensor,
        gradients: Tensor,
        tokens: int,
        generator: torch.Generator,
        positions: RelativePositions | None = None,
    ) -> None:
        assert positions is not None
        rows = positions.rows.detach().to(keys).expand(len(keys), -1, -1)  # (B, J, D)
        every, by_row = keys, gradients
        if self._terms.c2p:
            every = torch.cat([keys, rows], dim=1)  # (B, S + J, D)
            by_row = torch.cat([gradients, _by_row(gradients, positions.places, rows.shape[1])], dim=-1)
        super().add(queries, every, by_row, tokens, generator)
        if self._exchanged is not None:
            by_row = _by_row(gradients.mT, positions.places.mT, rows.shape[1])  # (B, H, S, J)
            self._exchanged.add(keys, rows, by_row, tokens, generator)

    def add_other_processes(self, owner: int | None = None) -> None:
        super().add_other_processes(owner)
        if self._exchanged is not None:
            self._exchanged.add_other_processes(owner)

    def merge(self, other: Accumulator) -> None:
        super().merge(other)
        if isinstance(other, DisentangledAccumulator) and self._exchanged is not None and other._exchanged is not None:
            self._exchanged.merge(other._exchanged)

    def kept_in(self, file: Path) -> Accumulator:
        if self._exchanged is not None:
            self._exchanged.kept_in(file.with_name(f"{file.name}.exchanged"))
        return super().kept_in(file)

    def another(self) -> Accumulator:
        widths = len(self._query), len(self._key), len(self._weight)
        return type(self)(*widths, self._query.device, self._terms)

    def finish(self) -> LayerMoments:
        moments = super().finish()
        if self._exchanged is None or moments.unknown:
            return moments
        other = self._exchanged.finish()
        if other.unknown:
            return replace(moments, key_mean=torch.zeros_like(other.query_mean))
        # Σ_x ⊗ U + V ⊗ Σ_y, in the units in which Σ_x and U alone would be returned.
        spread, rotated = (float(each.query_covariance.trace()) for each in (moments, other))  # of x, of y
        energy = spread * float(moments.key_covariance.trace()), rotated * float(other.key_covariance.trace())
        share = energy[0] / max(sum(energy), torch.finfo(torch.float64).tiny)
        weight = rotated / max(spread, torch.finfo(torch.float64).tiny)
        scale = spread / max(float(other.key_covariance.trace()), torch.finfo(torch.float64).tiny)
        return LayerMoments(
            query_mean=moments.query_mean,
            query_covariance=share * moments.query_covariance + (1 - share) * scale * other.key_covariance,
            key_covariance=moments.key_covariance + other.query_covariance / scale,
            head_weight=moments.head_weight + weight * other.head_weight,
            tokens=moments.tokens,
            key_mean=other.query_mean,
        )


def _mapped(shape: torch.Size, file: Path) -> Tensor:
    """Zeros in float64 in a new file, whose space is taken at once: without it, a full disk ends the process later."""
    with file.open("wb") as new:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(new.fileno(), 0, 8 * shape.numel())
        else:  # Windows and macOS
            new.truncate(8 * shape.numel())
    return torch.from_file(str(file), True, shape.numel(), dtype=torch.float64).view(shape)


def _by_row(gradients: Tensor, index: Tensor, count: int) -> Tensor:
    """Gradients of scores (B, H, T, S), summed over the keys of the same row j(t, s), (B, H, T, J)."""
    sums = gradients.new_zeros(*gradients.shape[:-1], count)
    return sums.scatter_add_(-1, index.expand_as(gradients), gradients)


def _widened(rows: Tensor, width: int) -> Tensor:
    """Inputs (B, T, D) with ones appended up to a width."""
    return torch.nn.functional.pad(rows, (0, width - rows.shape[-1]), value=1.0)


def pooled(passes: Sequence[LayerMoments]) -> LayerMoments:
    """The moments of a layer that the model applies several times, with equal weight for each pass.

    How much the output depends on the scores differs a lot between passes; without normalization a few would dominate.
    """
    if len(passes) == 1:
        return passes[0]
    parts = [moments.head_weight / moments.head_weight.sum() / len(passes) for moments in passes]  # (H,) each
    weight = torch.stack(parts).sum(dim=0)  # (H,)
    mean = sum(part.unsqueeze(1) * moments.query_mean for part, moments in zip(parts, passes, strict=True))
    mean = mean / weight.clamp(min=torch.finfo(torch.float64).tiny).unsqueeze(1)  # (H, D_q)
    query, key = torch.zeros_like(passes[0].query_covariance), torch.zeros_like(passes[0].key_covariance)
    for part, moments in zip(parts, passes, strict=True):
        offset = moments.query_mean - mean  # (H, D_q)
        query += moments.query_covariance / len(passes) + (offset.mT * part) @ offset
        key += moments.key_covariance / moments.head_weight.sum() / len(passes)
    tokens, unknown = sum(moments.tokens for moments in passes), any(moments.unknown for moments in passes)
    return LayerMoments(mean, query, key, weight, tokens, unknown)
