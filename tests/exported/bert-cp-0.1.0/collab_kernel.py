"""How one attention layer's scores and outputs are computed: by plain matrix products or by a fused kernel.

Notation: B batch, H heads, T query tokens, S key tokens, r dimensions that a head's query and key have, d that its
value has. `benchmarks/attention.py` measures every choice that is made here.

This file travels with every exported model; it imports only torch.
"""

from collections.abc import Callable, Sequence
from itertools import repeat
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

Mix = Callable[[Tensor, Tensor | None], Tensor]
"""Makes queries by head, (B, H, T, r), of shared ones, (B, 1, T, R); in the memory of the second tensor, or not."""

TILE = 3 * 2**19
"""Bytes of scores that are computed at a time: what stays in the second-level caches of two cores."""

SEQUENCES = 3 * 2**18
"""The same where a tile is of whole sequences: less, because each brings keys and values of its own. As many scores, or
fewer, need no tiles."""

FEW = 2**16
"""Bytes of scores up to which it is the number of operations that costs time, not what they compute."""


def attention_by_cost(
    mix: Mix,
    projected: Tensor,
    key: Tensor,
    value: Tensor,
    content: Tensor | None,
    attention_mask: Tensor | None,
    position_bias: Tensor | None,
    scaling: float,
    dropout: float,
    is_causal: bool,
    path: str = "auto",
) -> Tensor:
    """Attention without its weights, the way that is fastest for these shapes; they agree within rounding.

    What is fastest on a CPU depends on the data type, see `_fuses`. Plain products are made in tiles whose scores stay
    in the processor's cache, unless all fit into one, or there can be no tiles: with a gradient, or compiled. Other
    devices always fuse.

    Fused, queries, keys and values are padded with zeros to one width, because the fused kernels want that. The
    content goes into a column of the padding where there is room for it, and into an additive mask otherwise. A fused
    kernel for the CPU has no dropout and no gradient of a mask, so then the content becomes a column anyway, and what
    is left of such cases is computed plainly.

    Args:
        mix: see `Mix`.
        projected: (B, T, R).
        key: (B, 1 or H, S, r).
        value: (B, H, S, d).
        content: (B, H, S), before scaling, or None.
        attention_mask: None; boolean, True where a key is seen; or additive; broadcast to (B, H, T, S).
        position_bias: additive, scaled, (1 or B, H, T, S), or None.
        scaling: 1/√d.
        dropout: probability of dropping an attention weight.
        is_causal: whether, with no mask, later keys are hidden.
        path: ``auto``, or one of ``fused`` and ``matmul``.

    Returns:
        (B, T, H, d).
    """
    attention_mask = one_row(attention_mask)
    shared = projected.unsqueeze(1)  # (B, 1, T, R)
    on_cpu = key.device.type == "cpu"
    heads, narrow, width = value.shape[1], value.shape[-1], key.shape[-1]
    columns = 0 if content is None else heads if key.shape[1] == 1 else 1
    as_columns = columns > 0 and (width + columns <= narrow or _needs_gradient(content))
    width = max(width + columns * as_columns, narrow)
    # Tiles are written in place, and their number must not depend on a symbol. Queries of no row
    # show whether M is trained.
    added = content, attention_mask, position_bias
    in_place = not (
        dropout > 0
        or torch.compiler.is_compiling()
        or (torch.is_grad_enabled() and _needs_gradient(mix(shared[:0], None), key, value, *added))
    )
    # Bytes of all scores, if there can be tiles: without, whatever is compared with them may be a symbol.
    size = value.shape[:2].numel() * shared.shape[2] * key.shape[2] * key.element_size() if in_place else None
    if path == "auto":
        path = "fused" if not on_cpu or _fuses(key, width, narrow, size) else "matmul"
        if on_cpu and (dropout > 0 or _needs_gradient(position_bias)):
            path = "matmul"
    if path == "matmul" and size is not None and size > SEQUENCES:
        mask = additive_mask(additive_bias(content, position_bias, scaling), attention_mask, is_causal, shared, key)
        return _attention_in_tiles(mix, shared, key, value, mask, scaling)
    query = mix(shared, None)  # (B, H, T, r)
    query_columns: Tensor | None = None
    key_columns: Tensor | None = None
    if path == "fused" and as_columns and content is not None:
        query_columns, key_columns = _content_columns(query, key, content)
        content = None
    bias = additive_bias(content, position_bias, scaling)
    if bias is not None or path == "matmul":
        attention_mask = additive_mask(bias, attention_mask, is_causal, query, key)
    if path == "matmul":
        return _plain(query, key, value, attention_mask, scaling, dropout)[0].transpose(1, 2)
    if not on_cpu:
        width += -width % 8  # what kernels for GPUs want
    output = functional.scaled_dot_product_attention(
        _widen(query, width, query_columns),
        _widen(key, width, key_columns).expand(-1, heads, -1, -1),
        _widen(value, width),
        attn_mask=attention_mask,
        dropout_p=dropout,
        is_causal=is_causal and attention_mask is None and query.shape[2] > 1,
        scale=scaling,
    )  # (B, H, T, width)
    return output[..., :narrow].transpose(1, 2)


def _fuses(key: Tensor, width: int, narrow: int, size: int | None) -> bool:
    """Whether the fused kernel is the faster one on a CPU.

    In float16 it always is, and in bfloat16 plain products are, unless compiled: what processors have instructions
    for, or not. In float32 the fused kernel pays while a head's queries are no wider than its values, or twice as wide
    where there can be no tiles. What fits into one tile is not worth the padding, if it needs any.

    Args:
        key: before padding.
        width: of queries, keys and values, padded.
        narrow: d.
        size: bytes of all scores, or None where there can be no tiles.
    """
    if key.dtype == torch.float16:
        return True
    if key.dtype == torch.bfloat16 and not torch.compiler.is_compiling():
        return size is not None and size <= FEW and width <= narrow
    if size is None:
        return width <= 2 * narrow
    return width <= narrow and (size > SEQUENCES or key.shape[-1] == width)


def _attention_in_tiles(
    mix: Mix, shared: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float
) -> Tensor:
    """Plain attention, as many sequences or queries at a time as have scores of `TILE` bytes; (B, T, H, d).

    Each tile takes the memory of the one before, which the cache holds: products are added to a copy of the mask, and
    weights take the place of their scores. Whatever can be is done once for all tiles, because between products even a
    view costs a hundredth of a tile.
    """
    batch, heads, seen, narrow = value.shape
    length, width = shared.shape[2], key.shape[-1]
    groups = heads // key.shape[1]  # heads that read the same key
    row = heads * seen * key.element_size()  # bytes of the scores of one query token
    rows = min(length, max(16, TILE // row))
    sequences = max(1, SEQUENCES // (row * length))
    sequences = -(-batch // -(-batch // sequences))  # as many in every tile
    output = value.new_empty(batch, length, heads, narrow)
    columns = key.flatten(0, 1).mT.split(sequences * heads // groups)  # (B·H/groups, r, S)
    values = value.unbind() if sequences == 1 else [some.flatten(0, 1) for some in value.split(sequences)]
    again = range(-(-length // rows))  # tiles of the same sequences
    tile: tuple[int, ...] = ()
    for part, key_columns, some, place, added in zip(
        _tiles(shared, sequences, rows),
        [one for one in columns for _ in again],
        [one for one in values for _ in again],
        _tiles(output.transpose(1, 2), sequences, rows),
        repeat(None) if mask is None else _tiles(mask.expand(batch, heads, length, seen), sequences, rows),
        strict=False,
    ):
        if tile != part.shape:  # the first, or smaller than those before
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
        torch.softmax(scores, dim=-1, out=scores)  # reads every row before it writes it
        torch.bmm(weights, some, out=contexts)
        place.copy_(outputs)
    return output


def _tiles(tensor: Tensor, sequences: int, rows: int) -> Sequence[Tensor]:
    """A tensor (B, ·, T, ·) in tiles of so many sequences and tokens."""
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
    """Plain attention that also gives the weights. One key for all heads is used as it is, never copied H times.

    Args:
        module: the layer, for its training flag.
        query: (B, H, T, r).
        key: (B, 1 or H, S, r).
        value: (B, H, S, d).
        attention_mask: additive, broadcast to (B, H, T, S), or None.
        scaling: 1/√d.
        dropout: probability of dropping an attention weight.
        **kwargs: not used; what other kernels take.

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
    key = key * scaling  # the smallest of what could be scaled
    if key.shape[1] == 1:
        rows = query.reshape(batch, heads * length, width)
        scores = (rows @ key.squeeze(1).mT).view(batch, heads, length, -1)  # (B, H, T, S)
    else:
        scores = query @ key.mT  # (B, H, T, S)
    if mask is not None:
        scores = scores.add_(mask)
    weights = scores.softmax(dim=-1)
    if dropout:
        weights = functional.dropout(weights, dropout)
    return weights @ value, weights


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

    With no mask a causal layer is on its own: kernels stop being causal by themselves once they are given a mask.
    """
    length = query.shape[-2]
    bias = None if bias is None else bias.to(query.dtype)
    if mask is None:
        if not is_causal or length == 1:
            return bias
        rows = torch.arange(length, device=query.device).unsqueeze(1)
        mask = rows >= torch.arange(key.shape[2], device=query.device)  # (T, S)
    if mask.dtype == torch.bool:
        seen = query.new_zeros(1) if bias is None else bias
        return torch.where(mask, seen, torch.finfo(query.dtype).min)
    return mask if bias is None else bias + mask


def one_row(mask: Tensor | None) -> Any:
    """A mask that is the same for all queries, which transformers writes out for each, as one row again."""
    if mask is None or mask.ndim != 4 or mask.shape[2] == 1:
        return mask
    row = mask[:, :, :1]
    same = mask.stride(2) == 0
    if not same and mask.device.type == "cpu" and not (torch.compiler.is_compiling() or _needs_gradient(mask)):
        # Looking is cheap: a mask is H times smaller than the scores that it would otherwise be written out for.
        same = torch.equal(mask[:, :, -1:], row) and bool((mask == row).all())
    return row if same else mask


def content_as_columns(query: Tensor, key: Tensor, content: Tensor) -> tuple[Tensor, Tensor]:
    """Queries and keys whose product includes the content term, for kernels that take no additive bias.

    A shared key (B, 1, S, r) gets H columns, of which head h's query reads the h-th; a key for each head gets one.
    """
    reading, columns = _content_columns(query, key, content)
    return torch.cat([query, reading], dim=-1), torch.cat([key, columns], dim=-1)


def _content_columns(query: Tensor, key: Tensor, content: Tensor) -> tuple[Tensor, Tensor]:
    heads = query.shape[1]
    if key.shape[1] == 1:
        reading = torch.eye(heads, dtype=query.dtype, device=query.device).unsqueeze(1)  # (H, 1, H)
    else:
        reading = query.new_ones(1, 1, 1)
    return reading.expand(*query.shape[:-1], -1), _key_columns(key, content)


def _key_columns(key: Tensor, content: Tensor) -> Tensor:
    return content.transpose(1, 2).unsqueeze(1) if key.shape[1] == 1 else content.unsqueeze(-1)


def pack(key: Tensor, content: Tensor | None) -> Tensor:
    """Keys with the content bias as more columns: (B, 1, S, r + H) where the key is shared, (B, H, S, r + 1) else."""
    if content is None:
        return key
    return torch.cat([key, _key_columns(key, content)], dim=-1)


def _needs_gradient(*tensors: Tensor | None) -> bool:
    return torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in tensors)


def _widen(tensor: Tensor, width: int, columns: Tensor | None = None) -> Tensor:
    """With more columns and then zeros up to a width, in one copy."""
    parts = [tensor] if columns is None else [tensor, columns]
    missing = width - sum(part.shape[-1] for part in parts)
    if missing:
        parts.append(tensor.new_zeros(1).expand(*tensor.shape[:-1], missing))
    return torch.cat(parts, dim=-1) if len(parts) > 1 else tensor
