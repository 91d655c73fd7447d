"""Attention in long rows: every query sees the tokens near it and a few others, instead of all of them.

Notation as in `collab_kernel`; b is the length of a block. The first g tokens of a row are global: they see all tokens,
and all tokens see them. The others stand in blocks of b, and a block sees itself and the blocks beside it. So the
largest tensor of scores is (B, H, b, 3b + g) for each block, and time and memory grow with T instead of T².

With ``summaries``, a block sees the rest of the row as well, in groups of n tokens of which each has one key and one
value: their mean, or those of the first token. As one key in place of n, its score gets + log n: Σ exp(s_i) ≈ n exp(s).

Rows that begin with padding are rotated to their first token, and rows shorter than `LongRows.dense_below` are computed
as if they were alone. So what a row gives does not depend on the others of its batch.

This file is copied into every exported model; it imports only torch and its own folder.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from .collab_config import LongRows
from .collab_kernel import Mix, Scoring, additive_mask, attention_by_cost, eager_attention_forward

GATHERED = 2**23
"""Bytes of keys and values that are gathered for several blocks at a time."""


class Rows(NamedTuple):
    """What enters the attention of rows to themselves.

    Attributes:
        projected: shared queries, (B, T, R).
        key: (B, 1 or H, T, r).
        value: (B, H, T, d).
        content: (B, H, T), or None.
        mask: additive, (B, 1 or H, 1 or T, T).
    """

    projected: Tensor
    key: Tensor
    value: Tensor
    content: Tensor | None
    mask: Tensor

    def chosen(self, rows: Tensor, length: int) -> "Rows":
        """Some of the rows, cut to a length."""
        return Rows(
            self.projected[rows, :length],
            self.key[rows, :, :length],
            self.value[rows, :, :length],
            None if self.content is None else self.content[rows, :, :length],
            self.mask[rows, :, :length, :length],
        )

    def rotated(self, starts: Tensor) -> "Rows":
        """Every row beginning with the token of that index, (B,); what is before goes to the end."""
        places = (torch.arange(self.projected.shape[1], device=starts.device) + starts.unsqueeze(1)) % (
            self.projected.shape[1]
        )  # (B, T)
        mask = self.mask.take_along_dim(places[:, None, None], 3)
        return Rows(
            self.projected.take_along_dim(places[..., None], 1),
            self.key.take_along_dim(places[:, None, :, None], 2),
            self.value.take_along_dim(places[:, None, :, None], 2),
            None if self.content is None else self.content.take_along_dim(places[:, None], 2),
            mask if mask.shape[2] == 1 else mask.take_along_dim(places[:, None, :, None], 2),
        )


class _Keys(NamedTuple):
    """Keys beside those of a block's neighbourhood: the global tokens', and summaries.

    Attributes:
        key: (B, 1 or H, g + C, r).
        value: (B, H, g + C, d).
        content: (B, H, g + C), or None.
        mask: additive, (B, g + C).
        blocks: the block that each of the C summaries is of.
    """

    key: Tensor
    value: Tensor
    content: Tensor | None
    mask: Tensor
    blocks: Tensor


def attention_in_blocks(
    mix: Mix, projected: Tensor, key: Tensor, value: Tensor, scoring: Scoring, long: LongRows, path: str = "auto"
) -> Tensor:
    """Attention of long rows to themselves without its weights, (B, T, H, d); arguments as of `attention_by_cost`."""
    rows, starts, spans = _prepared(projected, key, value, scoring)
    _check(rows, long)
    if spans is None:
        return _blocks(mix, rows, scoring, long, path)
    short = spans < long.dense_below
    if not short.any():
        output = _blocks(mix, rows, scoring, long, path)
    else:
        length = max(1, int(spans[short].max()))
        dense = _attended(mix, rows.chosen(short, length), scoring, path)
        output = dense.new_zeros(*projected.shape[:2], *dense.shape[2:])
        output[short, :length] = dense
        if not short.all():
            output[~short] = _blocks(mix, rows.chosen(~short, projected.shape[1]), scoring, long, path)
    return output if starts is None else _rotated_back(output, starts)


def eager_attention_in_long_rows(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scoring: Scoring,
    long: LongRows,
) -> tuple[Tensor, Tensor]:
    """The same with all (T, T) weights: for those who ask for them, and the reference of `attention_in_blocks`.

    The weight of a summary counts as those of its tokens, whose values it is the mean of.

    Args:
        module: the layer, for its training flag.
        query: queries by head, (B, H, T, r).
        key: (B, 1 or H, T, r).
        value: (B, H, T, d).
        scoring: content, mask, scaling and dropout.
        long: the shape of the attention.

    Returns:
        Outputs (B, T, H, d) and weights (B, H, T, T).
    """
    batch, heads, length, width = query.shape
    # Queries by head take the place of shared ones; they are rotated in the same way.
    rows, starts, spans = _prepared(query.transpose(1, 2).flatten(2), key, value, scoring)
    _check(rows, long)
    query = rows.projected.unflatten(2, (heads, width)).transpose(1, 2)
    places = torch.arange(length, device=query.device)
    blocks = torch.where(places < long.global_tokens, -1, (places - long.global_tokens) // long.block)
    near = (blocks.unsqueeze(1) - blocks).abs() <= 1  # (T, T)
    seen = near | (blocks < 0) | (blocks < 0).unsqueeze(1)
    short = torch.zeros(batch, dtype=torch.bool, device=query.device) if spans is None else spans < long.dense_below
    members, groups = _membership(rows, long)  # (B, C, T), (C,)
    summaries = _summaries(rows, long)
    far = ((blocks.unsqueeze(1) - groups).abs() > 1) & (blocks >= 0).unsqueeze(1)  # (T, C)
    hidden = torch.finfo(query.dtype).min / 2
    own = torch.where(seen | short[:, None, None, None], rows.mask, hidden)  # (B, 1 or H, T, T)
    others = torch.where(far & ~short[:, None, None], summaries.mask.unsqueeze(1), hidden).unsqueeze(1)
    mask = torch.cat([own, others.expand(*own.shape[:-1], -1)], dim=-1)  # (B, 1 or H, T, T + C)
    key, value = torch.cat([rows.key, summaries.key], dim=2), torch.cat([rows.value, summaries.value], dim=2)
    if rows.content is not None and summaries.content is not None:
        mask = mask + torch.cat([rows.content, summaries.content], dim=-1).unsqueeze(2) * scoring.scaling
    output, weights = eager_attention_forward(
        module, query, key, value, mask, scaling=scoring.scaling, dropout=scoring.dropout
    )
    weights = weights[..., :length] + weights[..., length:] @ members.unsqueeze(1).to(weights.dtype)
    if starts is None:
        return output, weights
    weights = _rotated_back(weights.transpose(1, 2), starts).transpose(1, 3)  # (B, S, H, T), of the queries' order
    return _rotated_back(output, starts), _rotated_back(weights, starts).permute(0, 2, 3, 1)


def _prepared(
    projected: Tensor, key: Tensor, value: Tensor, scoring: Scoring
) -> tuple[Rows, Tensor | None, Tensor | None]:
    """The rows, rotated to their first tokens; these, (B,), if they were; and how long each is, if a mask says so."""
    batch, length, _ = projected.shape
    query = projected.unsqueeze(1)
    mask = additive_mask(None, scoring.mask, scoring.is_causal, query, key)
    if mask is None:
        rows = Rows(projected, key, value, scoring.content, projected.new_zeros(batch, 1, 1, length))
        return rows, None, None
    mask = mask[(None,) * (4 - mask.ndim)]  # (T, T) where a layer is causal and there is no other mask
    if mask.shape[2] > 1 and bool((mask == mask[:, :, :1]).all()):  # expanded, and not reduced by `one_row`
        mask = mask[:, :, :1]
    mask = mask.expand(batch, -1, -1, -1)
    rows = Rows(projected, key, value, scoring.content, mask)
    seen = (mask > torch.finfo(mask.dtype).min / 4).flatten(1, 2).any(dim=1)  # (B, T): by any query
    starts = seen.int().argmax(dim=1)
    spans = (length - seen.flip(1).int().argmax(dim=1) - starts).where(seen.any(dim=1), 0)
    return (rows, None, spans) if not starts.any() else (rows.rotated(starts), starts, spans)


def _check(rows: Rows, long: LongRows) -> None:
    """Raises a ValueError for a mask that differs between queries, where a summary has one for all."""
    if long.summaries is not None and rows.mask.shape[2] > 1:
        raise ValueError("Summaries need a mask that is the same for all queries. Use local attention with this one.")


def _rotated_back(output: Tensor, starts: Tensor) -> Tensor:
    """What was computed for rotated rows, (B, T, ·, ·), in their own order."""
    length = output.shape[1]
    places = (torch.arange(length, device=starts.device) - starts.unsqueeze(1)) % length  # (B, T)
    return output.take_along_dim(places[..., None, None], 1)


def _attended(mix: Mix, rows: Rows, scoring: Scoring, path: str) -> Tensor:
    """Attention of queries to all the keys of their rows, (B, T, H, d)."""
    return attention_by_cost(
        mix,
        rows.projected,
        rows.key,
        rows.value,
        scoring._replace(content=rows.content, mask=rows.mask, is_causal=False),
        path,
    )


def _blocks(mix: Mix, rows: Rows, scoring: Scoring, long: LongRows, path: str) -> Tensor:
    """Attention of the global tokens, and of the others in blocks, (B, T, H, d)."""
    some, (batch, heads, length, width) = long.global_tokens, rows.value.shape
    output = rows.value.new_empty(batch, length, heads, width)
    if some:
        mask = rows.mask[:, :, :some] if rows.mask.shape[2] > 1 else rows.mask
        part = rows._replace(projected=rows.projected[:, :some], mask=mask)
        output[:, :some] = _attended(mix, part, scoring, path)
    first = some
    for part in _gathered(rows, long):
        context = _attended(mix, part, scoring, path).unflatten(0, (batch, -1)).flatten(1, 2)  # (B, c·b, H, d)
        last = min(first + context.shape[1], length)
        output[:, first:last] = context[:, : last - first]
        first = last
        del part, context  # before those of the next blocks are gathered
    return output


def _gathered(rows: Rows, long: LongRows) -> Iterator[Rows]:
    """The queries of c blocks and the keys that they see, as B·c rows; the number c goes by `GATHERED`."""
    size, some = long.block, long.global_tokens
    batch, length, _ = rows.projected.shape
    count = -(-(length - some) // size)  # blocks
    others = _others(rows, long)
    hidden = torch.finfo(rows.mask.dtype).min / 2
    around = (size, (count + 1) * size - (length - some))
    masks = functional.pad(rows.mask[..., some:], around, value=hidden)  # (·, ·, 1 or T, …)
    seen = 3 * size + others.mask.shape[1]
    per_block = batch * seen * (rows.key.shape[1] * rows.key.shape[-1] + rows.value.shape[1] * rows.value.shape[-1])
    step = max(1, GATHERED // (per_block * rows.key.element_size()))
    for first in range(0, count, step):
        blocks = range(first, min(first + step, count))
        content = None if rows.content is None else _windows(rows.content.unsqueeze(-1), blocks, long).squeeze(-1)
        yield Rows(
            _span(rows.projected, some + first * size, some + blocks.stop * size, 1)
            .unflatten(1, (-1, size))
            .flatten(0, 1),
            _beside(others.key, _windows(rows.key, blocks, long)),
            _beside(others.value, _windows(rows.value, blocks, long)),
            None if content is None or others.content is None else _beside(others.content, content),
            _mask_of_blocks(rows.mask, masks, others, long, blocks),
        )


def _windows(tensor: Tensor, blocks: range, long: LongRows) -> Tensor:
    """(B, h, T, w) → (B, h, c, 3b, w): for each of c blocks its tokens, and those of the blocks beside it."""
    size, some = long.block, long.global_tokens
    first, last = (some + block * size for block in (blocks.start - 1, blocks.stop + 1))
    # What is missing at the beginning is no global token.
    span = _span(tensor[:, :, some:], first - some, last - some, 2)
    return span.unfold(2, 3 * size, size).transpose(-1, -2)


def _span(tensor: Tensor, first: int, last: int, dim: int) -> Tensor:
    """The entries from first to last - 1 along a dimension, with zeros for those before and behind the tensor."""
    size = tensor.shape[dim]
    part = tensor.narrow(dim, max(first, 0), min(last, size) - max(first, 0))
    missing = max(-first, 0), max(last - size, 0)
    behind = (0, 0) * (tensor.ndim - 1 - dim)
    return functional.pad(part, (*behind, *missing)) if any(missing) else part


def _beside(others: Tensor, windows: Tensor) -> Tensor:
    """(B, h, g + C, …) and (B, h, c, 3b, …) → (B·c, h, g + C + 3b, …)."""
    expanded = others.unsqueeze(2).expand(*windows.shape[:3], *others.shape[2:])
    return torch.cat([expanded, windows], dim=3).transpose(1, 2).flatten(0, 1)


def _mask_of_blocks(mask: Tensor, padded: Tensor, others: _Keys, long: LongRows, blocks: range) -> Tensor:
    """The additive mask of some blocks, (B·c, 1 or H, 1 or b, g + C + 3b).

    Args:
        mask: of the rows.
        padded: the same without the global tokens' columns, and with a block before and what the last block lacks and
            a block behind.
        others: keys beside those of the neighbourhood.
        long: the shape of the attention.
        blocks: the numbers of the blocks.
    """
    size, some, batch = long.block, long.global_tokens, len(others.mask)
    hidden = torch.finfo(mask.dtype).min / 2
    numbers = torch.arange(blocks.start, blocks.stop, device=mask.device).unsqueeze(1)  # (c, 1)
    if mask.shape[2] == 1:
        window = padded[:, 0, 0].unfold(1, 3 * size, size)[:, blocks.start : blocks.stop]  # (B, c, 3b)
        far = (numbers - others.blocks).abs() > 1  # (c, C)
        summaries = torch.where(far, others.mask[:, None, some:], hidden)
        start = others.mask[:, None, :some].expand(-1, len(blocks), -1)
        return torch.cat([start, summaries, window], dim=-1).flatten(0, 1)[:, None, None]
    parts = []
    for block in blocks:
        tokens = slice(some + block * size, some + (block + 1) * size)
        near = padded[:, :, tokens, block * size : (block + 3) * size]
        part = torch.cat([mask[:, :, tokens, :some], near], dim=-1)  # fewer than b queries in the last block
        parts.append(functional.pad(part, (0, 0, 0, size - part.shape[2])))
    return torch.stack(parts, dim=1).expand(batch, -1, -1, -1, -1).flatten(0, 1)


def _others(rows: Rows, long: LongRows) -> _Keys:
    """The keys that a block sees besides those of its neighbourhood."""
    some = long.global_tokens
    start = _Keys(
        rows.key[:, :, :some],
        rows.value[:, :, :some],
        None if rows.content is None else rows.content[..., :some],
        rows.mask[:, 0, 0, :some].expand(len(rows.projected), -1),
        torch.empty(0, dtype=torch.long, device=rows.mask.device),
    )
    if long.summaries is None:
        return start
    more = _summaries(rows, long)
    content = None if start.content is None or more.content is None else torch.cat([start.content, more.content], -1)
    return _Keys(
        torch.cat([start.key, more.key], dim=2),
        torch.cat([start.value, more.value], dim=2),
        content,
        torch.cat([start.mask, more.mask], dim=1),
        more.blocks,
    )


def _groups(rows: Rows, long: LongRows) -> tuple[Tensor, Tensor]:
    """The tokens of every group, (B, C, n), 1 for those that are there; and the block that each group is of, (C,)."""
    count, some = long.grouping[1], long.global_tokens
    seen = (rows.mask[:, 0, 0, some:] > torch.finfo(rows.mask.dtype).min / 4).to(rows.mask.dtype)
    seen = functional.pad(seen, (0, -seen.shape[1] % count)).unflatten(1, (-1, count))
    return seen, torch.arange(seen.shape[1], device=seen.device) * count // long.block


def _parts(seen: Tensor, long: LongRows) -> Tensor:
    """The part of every token in the key and the value of its group, (B, C, n)."""
    if long.grouping[0] == "mean":
        return seen / seen.sum(dim=-1, keepdim=True).clamp(min=1)
    return seen * functional.pad(seen.new_ones(1), (0, seen.shape[-1] - 1))


def _membership(rows: Rows, long: LongRows) -> tuple[Tensor, Tensor]:
    """Each token's part in the key and value of every summary, (B, C, T), and the block that each is of, (C,)."""
    batch, length, _ = rows.projected.shape
    if long.summaries is None:
        nothing = rows.mask.new_zeros(batch, 0, length)
        return nothing, torch.empty(0, dtype=torch.long, device=nothing.device)
    seen, blocks = _groups(rows, long)
    parts = _parts(seen, long)
    places = torch.arange(parts[0].numel(), device=parts.device).view_as(parts[0]) + long.global_tokens
    members = parts.new_zeros(batch, len(blocks), long.global_tokens + parts[0].numel())
    return members.scatter_(2, places.expand_as(parts), parts)[..., :length], blocks


def _summaries(rows: Rows, long: LongRows) -> _Keys:
    """One key and one value for every group of tokens, with the logarithm of their number as its mask."""
    if long.summaries is None:
        nothing = torch.empty(0, dtype=torch.long, device=rows.mask.device)
        content = None if rows.content is None else rows.content[..., :0]
        return _Keys(rows.key[:, :, :0], rows.value[:, :, :0], content, rows.mask[:, 0, 0, :0], nothing)
    seen, blocks = _groups(rows, long)
    parts = _parts(seen, long)
    count, some = seen.shape[-1], long.global_tokens
    hidden = torch.finfo(rows.mask.dtype).min / 2
    mask = torch.where(parts.sum(dim=-1) > 0, seen.sum(dim=-1).clamp(min=1).log(), hidden)

    def mean(tensor: Tensor) -> Tensor:
        """(B, h, T, w) → (B, h, C, w)."""
        end = -(tensor.shape[2] - some) % count
        grouped = functional.pad(tensor[:, :, some:], (0, 0, 0, end)).unflatten(2, (-1, count))
        return (parts[:, None, :, None].to(tensor.dtype) @ grouped).squeeze(3)

    content = None if rows.content is None else mean(rows.content.unsqueeze(-1)).squeeze(-1)
    return _Keys(mean(rows.key), mean(rows.value), content, mask, blocks)
