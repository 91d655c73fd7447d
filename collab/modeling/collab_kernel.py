"""Kernels of one attention layer: plain matrix products, or a fused kernel.

Notation: B batch, H heads, T query tokens, S key tokens, r dimensions that a head's query and key have, d that its
value has. `benchmarks/attention.py` measures every choice that is made here.

This file is copied into every exported model; it imports only torch.
"""

from collections.abc import Callable, Sequence
from itertools import repeat
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

Mix = Callable[[Tensor, Tensor | None], Tensor]
"""Mixes shared queries, (B, 1, T, R), into queries by head, (B, H, T, r), in the second tensor unless it is None."""

TILE = 3 * 2**19
"""Bytes of scores in a tile: what stays in the second-level caches of two cores."""

SEQUENCES = 3 * 2**18
"""The same if a tile is whole sequences: less, because each has its own keys and values. Fewer bytes of scores need no
tiles."""

FEW = 2**16
"""Bytes of scores up to which the number of operations determines the time, not their size."""

COPIED = 2**17
"""Bytes of a sequence's keys or values from which a product for each sequence takes less time than a copy of them."""


class Scoring(NamedTuple):
    """How products of queries and keys become attention weights.

    Attributes:
        content: (B, H, S), before scaling, or None.
        mask: None; boolean, True where a key is seen; or additive; broadcast to (B, H, T, S).
        position_bias: additive, scaled, (1 or B, H, T, S), or None.
        scaling: 1/√d.
        dropout: probability of dropping an attention weight.
        is_causal: whether, with no mask, later keys are hidden.
    """

    content: Tensor | None
    mask: Tensor | None
    position_bias: Tensor | None
    scaling: float
    dropout: float
    is_causal: bool

    def added(self, query: Tensor, key: Tensor) -> Tensor | None:
        """Content, position bias and mask as one additive mask, broadcast to (B, H, T, S)."""
        bias = additive_bias(self.content, self.position_bias, self.scaling)
        return additive_mask(bias, self.mask, self.is_causal, query, key)


def attention_by_cost(
    mix: Mix, projected: Tensor, key: Tensor, value: Tensor, scoring: Scoring, path: str = "auto"
) -> Tensor:
    """Attention without its weights, by the path that is fastest for these shapes; all agree within rounding.

    On a CPU the fastest path depends on the data type, see `_fuses`. Plain products are made in tiles whose scores stay
    in the processor's cache, unless all fit into one, or tiling is impossible: with a gradient, compiled or traced.
    Other devices always fuse. A fused kernel for the CPU has no dropout and no gradient of a mask, so such cases are
    computed plainly, except that content with a gradient becomes a column (see `_fused`).

    Args:
        mix: see `Mix`.
        projected: (B, T, R).
        key: (B, 1 or H, S, r).
        value: (B, H, S, d).
        scoring: content, mask, scaling and dropout; a mask of equal rows must have gone through `one_row`.
        path: ``auto``, ``fused`` or ``matmul``.

    Returns:
        (B, T, H, d).
    """
    content, dropout = scoring.content, scoring.dropout
    shared = projected.unsqueeze(1)  # (B, 1, T, R)
    on_cpu = key.device.type == "cpu"
    heads, narrow, width = value.shape[1], value.shape[-1], key.shape[-1]
    columns = 0 if content is None else heads if key.shape[1] == 1 else 1
    as_columns = columns > 0 and (width + columns <= narrow or _needs_gradient(content))
    width = max(width + (columns if as_columns else 0), narrow)
    # Tiling writes in place: no autograd, dropout or dynamic shapes. `mix` on zero rows shows whether the mixing
    # weights need gradients.
    terms = content, scoring.mask, scoring.position_bias
    in_place = not (
        dropout > 0
        or is_recorded()
        or (torch.is_grad_enabled() and _needs_gradient(mix(shared[:0], None), key, value, *terms))
    )
    # Bytes of all scores, only if tiling is possible: otherwise the shapes may be symbolic.
    size = value.shape[:2].numel() * shared.shape[2] * key.shape[2] * key.element_size() if in_place else None
    if path == "auto":
        path = "fused" if not on_cpu or _fuses(key, width, narrow, size) else "matmul"
        if on_cpu and (dropout > 0 or _needs_gradient(scoring.position_bias)):
            path = "matmul"
    if path == "matmul" and size is not None and size > SEQUENCES:
        return _attention_in_tiles(mix, shared, key, value, scoring.added(shared, key), scoring.scaling)
    query = mix(shared, None)  # (B, H, T, r)
    if path == "fused":
        return _fused(query, key, value, scoring, width, as_columns)
    return _plain(query, key, value, scoring.added(query, key), scoring.scaling, dropout)[0].transpose(1, 2)


def _fused(query: Tensor, key: Tensor, value: Tensor, scoring: Scoring, width: int, as_columns: bool) -> Tensor:
    """Attention by the fused kernel, (B, T, H, d).

    Queries, keys and values are padded with zeros to one width, because the fused kernels need equal widths.

    Args:
        query: (B, H, T, r).
        key: (B, 1 or H, S, r).
        value: (B, H, S, d).
        scoring: content, mask, scaling and dropout.
        width: the padded width.
        as_columns: whether the content becomes columns of the keys, within that width; otherwise it is added to the
            mask.
    """
    content, mask = scoring.content, scoring.mask
    query_columns: Tensor | None = None
    key_columns: Tensor | None = None
    if as_columns and content is not None:
        query_columns, key_columns = _content_columns(query, key, content)
        content = None
    bias = additive_bias(content, scoring.position_bias, scoring.scaling)
    if bias is not None:
        mask = additive_mask(bias, mask, scoring.is_causal, query, key)
    if key.device.type != "cpu":
        width += -width % 8  # kernels for GPUs need multiples of 8
    output = functional.scaled_dot_product_attention(
        _widen(query, width, query_columns),
        _widen(key, width, key_columns).expand(-1, value.shape[1], -1, -1),
        _widen(value, width),
        attn_mask=mask,
        dropout_p=scoring.dropout,
        is_causal=scoring.is_causal and mask is None and query.shape[2] > 1,
        scale=scoring.scaling,
    )  # (B, H, T, width)
    return output[..., : value.shape[-1]].transpose(1, 2)


def _fuses(key: Tensor, width: int, narrow: int, size: int | None) -> bool:
    """Whether the fused kernel is the faster one on a CPU.

    In float16 it always is, and in bfloat16 plain products are, unless compiled, depending on the instructions that
    processors have. In float32 the fused kernel is faster while a head's queries are no wider than its values, or twice
    as wide where tiling is impossible. Scores that fit into one tile are not worth any padding. If heads have keys of
    their own, padding costs less: up to half of the values' width, or to 32.

    Args:
        key: keys before padding.
        width: padded width of queries, keys and values.
        narrow: d.
        size: bytes of all scores, or None where tiling is impossible.
    """
    if key.dtype == torch.float16:
        return True
    if key.dtype == torch.bfloat16 and not torch.compiler.is_compiling():
        return size is not None and size <= FEW and width <= narrow
    if size is None:
        return width <= 2 * narrow
    widest = narrow if key.shape[1] == 1 else max(32, 3 * narrow // 2)
    return width <= widest and (size > SEQUENCES or key.shape[-1] == width)


def _attention_in_tiles(
    mix: Mix, shared: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float
) -> Tensor:
    """Plain attention in tiles of sequences or queries with `TILE` bytes of scores each, (B, T, H, d).

    Each tile reuses the memory of the previous one, which is in the cache: products are added to a copy of the mask,
    and weights overwrite their scores. As much as possible is done once for all tiles, because between products even a
    view costs a hundredth of a tile.
    """
    batch, heads, seen, narrow = value.shape
    length, width = shared.shape[2], key.shape[-1]
    groups = heads // key.shape[1]  # heads that read the same key
    row = heads * seen * key.element_size()  # bytes of the scores of one query token
    rows = min(length, max(16, TILE // row))
    sequences = max(1, SEQUENCES // (row * length))
    sequences = -(-batch // -(-batch // sequences))  # the same number in every tile
    output = value.new_empty(batch, length, heads, narrow)
    columns = key.flatten(0, 1).mT.split(sequences * heads // groups)  # (B·H/groups, r, S)
    values = value.unbind() if sequences == 1 else [part.flatten(0, 1) for part in value.split(sequences)]
    repeats = range(-(-length // rows))  # tiles of the same sequences
    tile: tuple[int, ...] = ()
    for part, key_columns, tile_values, place, added in zip(
        _tiles(shared, sequences, rows),
        [keys for keys in columns for _ in repeats],
        [part for part in values for _ in repeats],
        _tiles(output.transpose(1, 2), sequences, rows),
        repeat(None) if mask is None else _tiles(mask.expand(batch, heads, length, seen), sequences, rows),
        strict=False,
    ):
        if tile != part.shape:  # the first tile, or a smaller last one
            tile = part.shape
            queries = part.new_empty(tile[0], heads, tile[2], width)
            scores = part.new_empty(tile[0], heads, tile[2], seen)
            outputs = part.new_empty(tile[0], heads, tile[2], narrow)
            readers = queries.view(-1, groups * tile[2], width)  # (B·H/groups, groups·T, r)
            products = scores.view(-1, groups * tile[2], seen)  # (B·H/groups, groups·T, S)
            weights, contexts = scores.flatten(0, 1), outputs.flatten(0, 1)  # (B·H, T, S), (B·H, T, d)
        query = mix(part, queries)
        query = readers if query is queries else query.reshape(readers.shape)
        if added is not None:
            scores.copy_(added)
        products.baddbmm_(query, key_columns, beta=added is not None, alpha=scaling)
        torch.softmax(scores, dim=-1, out=scores)  # every row is read before it is written
        torch.bmm(weights, tile_values, out=contexts)
        place.copy_(outputs)
    return output


def _tiles(tensor: Tensor, sequences: int, rows: int) -> Sequence[Tensor]:
    """A tensor (B, ·, T, ·) in tiles of `sequences` sequences and `rows` tokens."""
    pieces: Sequence[Tensor] = tensor.split(sequences)
    return pieces if rows == tensor.shape[2] else [tile for piece in pieces for tile in piece.split(rows, 2)]


def eager_attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[Tensor, Tensor]:
    """Plain attention that also returns the weights. A key shared by the heads is never copied H times.

    Args:
        module: the layer, for its training flag.
        query: (B, H, T, r).
        key: (B, 1 or H, S, r).
        value: (B, H, S, d).
        attention_mask: additive, broadcast to (B, H, T, S), or None.
        scaling: 1/√d.
        dropout: probability of dropping an attention weight.
        **kwargs: arguments of other kernels, not used.

    Returns:
        Outputs (B, T, H, d) and weights (B, H, T, S).
    """
    output, weights = _plain(query, key, value, attention_mask, scaling, dropout if module.training else 0.0)
    return output.transpose(1, 2).contiguous(), weights


def _plain(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float, dropout: float
) -> tuple[Tensor, Tensor]:
    """Outputs (B, H, T, d) and weights (B, H, T, S)."""
    batch, heads, length, width = query.shape
    # The smaller tensor is scaled: while a text is written, one query of each head reads all keys.
    if not is_recorded() and query.numel() < key.numel():
        query = query * scaling
    else:
        key = key * scaling
    if key.shape[1] == 1:
        rows = query.reshape(batch, heads * length, width)
        scores = (rows @ key.squeeze(1).mT).view(batch, heads, length, -1)  # (B, H, T, S)
    else:
        scores = product_by_head(query, key.mT)  # (B, H, T, S)
    if mask is not None:
        scores = scores.add_(mask)
    weights = scores.softmax(dim=-1)
    if dropout:
        weights = functional.dropout(weights, dropout)
    return product_by_head(weights, value), weights


def product_by_head(left: Tensor, right: Tensor) -> Tensor:
    """(B, H, T, n) @ (B, H, n, m) → (B, H, T, m).

    One product for all sequences would copy keys and values as a projection gives them, a token's heads side by side:
    of such there is one for each sequence, unless that copy is small.
    """
    if is_recorded() or right.device.type != "cpu" or left.dtype != right.dtype or _needs_gradient(left, right):
        return left @ right
    if not is_copied(right) or right[0].numel() * right.element_size() < COPIED:
        return left @ right
    output = left.new_empty(*left.shape[:-1], right.shape[-1])
    for sequence, columns, place in zip(left, right, output, strict=True):
        torch.bmm(sequence, columns, out=place)
    return output


def is_copied(tensor: Tensor) -> bool:
    """Whether one product with (B, H, n, m) would copy it, because the heads of a token lie side by side."""
    batch, heads = tensor.shape[:2]
    return batch > 1 and heads > 1 and tensor.stride(0) != heads * tensor.stride(1)


def additive_bias(content: Tensor | None, position_bias: Tensor | None, scaling: float) -> Tensor | None:
    """Content (B, H, S) and position bias (1 or B, H, T, S) as one bias, broadcast to (B, H, T, S)."""
    if content is None:
        return position_bias
    bias = content.contiguous().unsqueeze(2) * scaling  # (B, H, 1, S); kernels want the last axis dense
    return bias if position_bias is None else bias + position_bias


def additive_mask(
    bias: Tensor | None, mask: Tensor | None, is_causal: bool, query: Tensor, key: Tensor
) -> Tensor | None:
    """One additive mask, broadcast to (B, H, T, S), from a bias and a mask that is None, boolean or additive.

    Without a mask, a causal layer gets a causal one, because kernels ignore their causal flag once they get a mask.

    A key is hidden by half the smallest number of the query's data type. The smallest number of a wider type, or its
    own with a negative score added, would be -∞, and a query that sees no key would get NaN.
    """
    length = query.shape[-2]
    bias = None if bias is None else bias.to(query.dtype)
    if mask is None:
        if not is_causal or length == 1:
            return bias
        rows = torch.arange(length, device=query.device).unsqueeze(1)
        mask = rows >= torch.arange(key.shape[2], device=query.device)  # (T, S)
    hidden = torch.finfo(query.dtype).min / 2
    if mask.dtype == torch.bool:
        seen = query.new_zeros(1) if bias is None else bias
        return torch.where(mask, seen, hidden)
    mask = mask.to(query.dtype).clamp(min=hidden)
    return mask if bias is None else bias + mask


def one_row(mask: Tensor | None) -> Any:
    """Reduces a mask that is the same for all queries to one row; transformers expands it to a row for each."""
    if mask is None or mask.ndim != 4 or mask.shape[2] == 1:
        return mask
    row = mask[:, :, :1]
    same = mask.stride(2) == 0
    if not same and mask.device.type == "cpu" and not (is_recorded() or _needs_gradient(mask)):
        # Comparing is cheap: a mask is H times smaller than the scores that it would otherwise be expanded to.
        # Without a tensor of the mask's size for what compares equal.
        same = torch.equal(mask[:, :, -1:], row) and torch.equal(mask, row.expand_as(mask))
    return row if same else mask


def content_as_columns(query: Tensor, key: Tensor, content: Tensor) -> tuple[Tensor, Tensor]:
    """Queries and keys whose product includes the content term, for kernels that take no additive bias.

    A shared key (B, 1, S, r) gets H columns, of which head h's query reads the h-th; a key by head gets one column.
    """
    reading, columns = _content_columns(query, key, content)
    return torch.cat([query, reading], dim=-1), torch.cat([key, columns], dim=-1)


def _content_columns(query: Tensor, key: Tensor, content: Tensor) -> tuple[Tensor, Tensor]:
    heads = query.shape[1]
    if key.shape[1] == 1:
        reading = torch.eye(heads, dtype=query.dtype, device=query.device).unsqueeze(1)  # (H, 1, H)
    else:
        reading = query.new_ones(1, 1, 1)
    columns = content.transpose(1, 2).unsqueeze(1) if key.shape[1] == 1 else content.unsqueeze(-1)
    return reading.expand(*query.shape[:-1], -1), columns


def is_recorded() -> bool:
    """Whether the computation is compiled or traced, to be repeated with other shapes and values."""
    return torch.compiler.is_compiling() or torch.jit.is_tracing()


def _needs_gradient(*tensors: Tensor | None) -> bool:
    return torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in tensors)


def _widen(tensor: Tensor, width: int, columns: Tensor | None = None) -> Tensor:
    """Appends columns, then zeros up to a width, in one copy."""
    parts = [tensor] if columns is None else [tensor, columns]
    missing = width - sum(part.shape[-1] for part in parts)
    if missing:
        parts.append(tensor.new_zeros(1).expand(*tensor.shape[:-1], missing))
    return torch.cat(parts, dim=-1) if len(parts) > 1 else tensor
