"""Query and key projections that all heads share, in the three forms; what every collaborative layer is built on.

The notation and the forms are those of `collab_attention`.

This file is copied into every exported model; it imports only torch and its own folder.
"""

from collections.abc import Callable
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from .collab_config import AttentionSpec
from .collab_kernel import Mix


class SharedProjections(nn.Module):
    """Shared queries and keys, what each head makes of them, and the content term.

    Args:
        spec: form, rank, content and heads.
        total: number of heads of the original layer.
        head_dim: d.
        widths: D_q and D_k.
        content: whether a spec that leaves the content open has a content term.

    Raises:
        ValueError: if the heads of the spec do not fit.
    """

    query: nn.Linear
    key: nn.Linear
    mixing: nn.Parameter
    content_bias: nn.Linear | None
    query_offset: nn.Parameter | None

    def __init__(
        self, spec: AttentionSpec, total: int, head_dim: int, widths: tuple[int, int], *, content: bool
    ) -> None:
        super().__init__()
        self.spec = spec
        self.total_heads = total
        self.heads = tuple(range(total)) if spec.heads is None else spec.heads
        if self.heads and self.heads[-1] >= total:
            raise ValueError(f"heads {list(self.heads)} must be numbers below {total}.")
        self.num_attention_heads = len(self.heads)
        self.attention_head_size = head_dim
        self.scaling = head_dim**-0.5
        self.content_bias = self.query_offset = None
        self.head_ranks: tuple[int, ...] | None = None
        if spec.form == "concat":
            self.head_ranks = spec.head_ranks or _evenly(spec.rank, self.num_attention_heads)
            if len(self.head_ranks) != self.num_attention_heads:
                raise ValueError(f"head_ranks must name {self.num_attention_heads} heads, not {len(self.head_ranks)}.")
            # Neighbouring heads of equal width are split together.
            self._owned = [(owned, len(list(heads))) for owned, heads in groupby(self.head_ranks)]
            self._widths = [owned * count for owned, count in self._owned]
        self._owners: Tensor | None = None
        if not self.heads:
            return
        query_width, key_width = widths
        self.query = nn.Linear(query_width, spec.rank, bias=False)
        self.key = nn.Linear(key_width, spec.rank, bias=False)
        if spec.form == "cp":
            self.mixing = nn.Parameter(torch.empty(self.num_attention_heads, spec.rank))
        elif spec.form == "tucker":
            self.mixing = nn.Parameter(torch.empty(self.num_attention_heads, spec.rank, spec.rank))
        stored = spec.content or ("exact" if content else "none")
        if stored == "exact":
            self.content_bias = nn.Linear(key_width, self.num_attention_heads, bias=False)
        elif stored == "folded":
            rows = 1 if spec.form == "concat" else self.num_attention_heads
            self.query_offset = nn.Parameter(torch.empty(rows, spec.rank))

    def init_heads(
        self,
        normal: Callable[..., object],
        zeros: Callable[[Tensor], object],
        copy: Callable[[Tensor, Tensor], object],
    ) -> None:
        """Initializes what stands between the projections; scores then have the variance of d independent dimensions.

        That is M or the cores. In the ``concat`` form, where head h has only r_h dimensions, its part of both
        projections, which must have been drawn before, is multiplied by (d/r_h)^¼. The content is zero.

        Args:
            normal: `torch.nn.init.normal_` or a function like it.
            zeros: `torch.nn.init.zeros_` or a function like it.
            copy: `torch.Tensor.copy_` or a function like it.
        """
        if self.head_ranks is not None:
            scales = [(self.attention_head_size / owned) ** 0.25 for owned in self.head_ranks for _ in range(owned)]
            for weight in (self.query.weight, self.key.weight):
                if getattr(weight, "_is_hf_initialized", False):  # it was read, and may be quantized
                    continue
                copy(weight, weight * weight.new_tensor(scales).unsqueeze(1))  # (R, D)
        else:
            per_score = self.spec.rank**2 if self.spec.form == "tucker" else self.spec.rank
            normal(self.mixing, mean=0.0, std=(self.attention_head_size / per_score) ** 0.5)
        if self.content_bias is not None:
            zeros(self.content_bias.weight)
        if self.query_offset is not None:
            zeros(self.query_offset)

    def project(self, queries: Tensor, keys: Tensor, positions: Any = None) -> tuple[Tensor, Tensor]:
        """Shared queries (B, T, R) and keys (B, S, R).

        Args:
            queries: x, (B, T, D_q).
            keys: y, (B, S, D_k).
            positions: what a layer with rotary positions rotates them by.
        """
        return self.placed(self.query(queries), self.key(keys), positions)

    def placed(self, query: Tensor, key: Tensor, positions: Any) -> tuple[Tensor, Tensor]:
        """Shared queries (B, T, R) and keys (B, S, R) with their positions, if a layer has any."""
        return query, key

    def queries(self, hidden_states: Tensor) -> Tensor:
        """X W̃_Q G_h + u_h for every head, shape (B, H, T, R), or (B, H, T, max_h r_h) in the concat form."""
        return self._mixed(self.query(hidden_states))

    def mixer(self, dtype: torch.dtype) -> Mix:
        """Mixes shared queries, X W̃_Q, into queries by head. Under autocast `dtype` is theirs, not that of M."""
        offset = None if self.query_offset is None else self.query_offset.to(dtype)  # (H, R), or (1, R)
        if self.head_ranks is not None:
            return lambda shared, room: self._split(plus(shared, offset).squeeze(1))
        offset = None if offset is None else offset.unsqueeze(1)  # (H, 1, R)
        mixing = self.mixing.to(dtype)
        if self.spec.form == "tucker":
            return lambda shared, room: plus(shared @ mixing, offset)  # (B, 1, T, R) @ (H, R, R)
        mixing = mixing.unsqueeze(1)  # (H, 1, R)
        # A trace cannot hold ``out=None``, so there are two calls.
        if offset is None:
            return lambda shared, room: shared * mixing if room is None else torch.mul(shared, mixing, out=room)
        return lambda shared, room: (
            torch.addcmul(offset, shared, mixing) if room is None else torch.addcmul(offset, shared, mixing, out=room)
        )

    def _mixed(self, projected: Tensor) -> Tensor:
        """Queries by head, (B, H, T, r), from shared ones, (B, T, R)."""
        return self.mixer(projected.dtype)(projected.unsqueeze(1), None)

    @property
    def has_equal_heads(self) -> bool:
        """Whether every head owns equally many shared dimensions, as in the concat form it may."""
        return self.head_ranks is not None and len(self._owned) == 1

    @property
    def shared_offset(self) -> Tensor | None:
        """The offset that heads of the concat form add to their queries is one of shared queries, (1, R)."""
        return self.query_offset if self.head_ranks is not None else None

    def queries_of_one_token(self, projected: Tensor) -> Tensor:
        """Queries by head, (B, H, R), from shared ones of one token, (B, 1, R), for keys as a cache holds them.

        The shared ones have their `shared_offset`. In the concat form a head's query is zero in the dimensions that
        others own; of equal heads it is what they own, (B, H, R / H). Cores are multiplied with all rows at once,
        because a product for each row would copy them.
        """
        form = self.spec.form
        if form != "concat":
            mixing: Tensor = self.mixing
            if mixing.dtype != projected.dtype:  # under autocast
                mixing = mixing.to(projected.dtype)
            if form == "cp":
                return plus(projected * mixing, self.query_offset)  # (H, R)
            mixed = projected.transpose(0, 1) @ mixing  # (1, B, R) @ (H, R, R)
            return plus(mixed.transpose(0, 1), self.query_offset)
        if self.has_equal_heads:
            return self._split(projected).squeeze(2)
        if self._owners is None or (self._owners.device, self._owners.dtype) != (projected.device, projected.dtype):
            every = torch.eye(self.spec.rank, dtype=projected.dtype, device=projected.device)
            self._owners = self._split(every.unsqueeze(0)).squeeze(0).sum(-1)  # (H, R), 0 or 1
        return projected * self._owners

    def keys(self, hidden_states: Tensor) -> Tensor:
        """Y W̃_K for the kernels, as `keys_by_head` returns it."""
        return self.keys_by_head(self.key(hidden_states))

    def keys_by_head(self, projected: Tensor) -> Tensor:
        """Y W̃_K, (B, S, ·), as one key for all heads, (B, 1, S, R); as (B, H, S, max_h r_h) in the concat form.

        Keys that several heads share are repeated.
        """
        if self.head_ranks is None:
            return projected.unsqueeze(1)
        return repeated(self.keys_apart(projected), self.num_attention_heads)

    def keys_apart(self, projected: Tensor) -> Tensor:
        """Keys in the concat form, (B, S, ·) → (B, K, S, max_h r_h), each for H / K neighbouring heads."""
        return self._split(projected)

    def bias(self, hidden_states: Tensor) -> Tensor | None:
        """The content term y·c_h before scaling, shape (B, H, S)."""
        content = self.content(hidden_states)
        return None if content is None else content.transpose(1, 2)

    def content(self, hidden_states: Tensor) -> Tensor | None:
        """The same by token, (B, S, H)."""
        return None if self.content_bias is None else self.content_bias(hidden_states)

    def _split(self, projected: Tensor) -> Tensor:
        """Shared dimensions (B, T, R) split among the heads that own them, padded with zeros, (B, H, T, max_h r_h)."""
        widest = max(owned for owned, _ in self._owned)
        if self.has_equal_heads and widest:
            return projected.view(*projected.shape[:-1], self.num_attention_heads, widest).transpose(1, 2)
        parts = iter(projected.split([width for width in self._widths if width], dim=-1))
        pieces = []
        for owned, count in self._owned:
            if not owned:  # runtimes refuse graphs with tensors without entries
                pieces.append(projected.new_zeros(*projected.shape[:-1], count, widest))
                continue
            piece = next(parts).unflatten(-1, (count, owned))  # (B, T, count, owned)
            pieces.append(piece if owned == widest else functional.pad(piece, (0, widest - owned)))
        return (torch.cat(pieces, dim=-2) if len(pieces) > 1 else pieces[0]).transpose(1, 2)


def repeated(tensor: Tensor, heads: int) -> Tensor:
    """Keys or values that neighbouring heads share, (B, ·, S, ·), for each head; those of all heads as they are."""
    return tensor if tensor.shape[1] == heads else tensor.repeat_interleave(heads // tensor.shape[1], dim=1)


def plus(tensor: Tensor, offset: Tensor | None) -> Tensor:
    """With an offset, if there is one, in the data type of the tensor."""
    return tensor if offset is None else tensor + offset.to(tensor.dtype)


def _evenly(rank: int, num_heads: int) -> tuple[int, ...]:
    """`rank` dimensions divided evenly among the heads, the first ones getting the remainder."""
    return tuple(rank // num_heads + (h < rank % num_heads) for h in range(num_heads))
