"""Attention in long rows of a decoder, and a cache that forgets what no token to come sees.

Notation as in `collab_kernel`; b is the length of a block. A token's *place* is its number in its row, from 0, without
the padding before it. A token with fewer than `LongRows.dense_below` tokens up to it, itself included, sees all of
them, as in a short row. A later one sees the first g tokens of its row, and of the others, which stand in blocks of b,
those of its block up to itself and of the block before; with summaries also the blocks before those, in groups of n
tokens with one key and one value each, as in `collab_long`. So what a token sees does not depend on those that follow,
and a text that is written token by token is what it is when it is read at once.

Rows are computed in pieces of at most b tokens behind the first ones, each against what is held for it. Without a cache
that is held for the call alone.

This file is copied into every exported model; it imports only torch, transformers and its own folder.
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional
from transformers.cache_utils import DynamicLayer

from .collab_config import LongRows


class Tokens(NamedTuple):
    """Which tokens of the rows of a batch are there.

    Attributes:
        starts: index of each row's first token, (B,), or (1,) if all rows begin alike.
        there: (B, S), or None if all tokens are there.
        first: the different starts.
    """

    starts: Tensor
    there: Tensor | None
    first: tuple[int, ...]

    @classmethod
    def of_mask(cls, mask: Tensor | None, length: int, total: int, device: torch.device) -> "Tokens":
        """The tokens that a mask shows.

        Args:
            mask: of padding, (1 or B, 1, 1, S), or of padding and of what follows, (1 or B, 1, T, S); boolean, True
                where a key is seen, or additive; or None.
            length: T, the number of tokens that attend, the last of the row.
            total: S.
            device: where the tokens are.

        Raises:
            ValueError: if the mask is any other one.
        """
        everything = cls(torch.zeros(1, dtype=torch.long, device=device), None, (0,))
        if mask is None:
            return everything
        if mask.dtype != torch.bool:
            mask = mask > torch.finfo(mask.dtype).min / 4
        there = mask.any(dim=2)  # (·, ·, S)
        fits = mask.shape[1] == 1 and mask.shape[3] == total
        if fits and mask.shape[2] > 1:
            places = torch.arange(total, device=device)
            causal = places <= places[total - length :].unsqueeze(1)  # (T, S)
            fits = torch.equal(mask, there.unsqueeze(2) & causal)
        if not fits:
            raise ValueError(
                "Long rows of a decoder in blocks take masks of padding only, (B, S); texts that are packed into one "
                "row, and masks of another kind, need dense attention: collab lengthen MODEL OUT --attention dense."
            )
        there = there[:, 0]  # (·, S)
        if there.all():
            return everything
        starts = torch.where(there.any(dim=1), there.int().argmax(dim=1), total)
        return cls(starts, there, tuple(sorted(set(starts.tolist()))))

    def at(self, indices: Tensor) -> Tensor:
        """Whether the tokens of these indices, (B, n) or (1, n), are there; those beyond the last are not."""
        if self.there is None:
            return torch.ones_like(indices, dtype=torch.bool)
        known = indices.clamp(max=self.there.shape[1] - 1)
        return self.there.gather(1, known.expand(len(self.there), -1)) & (indices < self.there.shape[1])


class Held(NamedTuple):
    """What some tokens see of their rows.

    Attributes:
        tokens: their places in the call.
        key: (B, ·, n, ·).
        value: (B, ·, n, ·).
        mask: additive, (1 or B, 1, T, n); None if each sees all keys but those of tokens behind it.
        groups: numbers of the groups among the keys.
    """

    tokens: slice
    key: Tensor
    value: Tensor
    mask: Tensor | None
    groups: range


class ForgettingLayer(DynamicLayer):
    """The cache of an attention layer that computes long rows in blocks.

    Keys and values are those of all tokens until some are forgotten. Then they are, in this order, those of the first
    g tokens of each row, one for each group of tokens that were forgotten, and those of the last tokens, which are at
    most 2·b, and up to n more where rows begin at different tokens.

    It counts tokens that were forgotten as well, and takes masks of all, so that there may be layers beside it that
    forget nothing.

    Args:
        long: the shape of the attention.
    """

    is_croppable = False

    def __init__(self, long: LongRows) -> None:
        super().__init__()
        self.long = long
        self.count = 1 if long.summaries is None else long.grouping[1]  # n
        self.length = 0  # of all tokens
        self.first = 0  # index of the first of the last tokens
        self.start = 0  # once some are forgotten, the index where the groups of the row that begins first begin

    @classmethod
    def of(cls, layer: DynamicLayer, long: LongRows) -> "ForgettingLayer":
        """With what another layer holds, which is all tokens."""
        made = cls(long)
        if layer.keys is not None and layer.values is not None:
            made.lazy_initialization(layer.keys, layer.values)
            made.keys, made.values, made.length = layer.keys, layer.values, layer.get_seq_length()
        return made

    def get_seq_length(self) -> int:
        return self.length

    def reset(self) -> None:
        super().reset()
        self.length = self.first = self.start = 0

    def crop(self, tokens_to_remove: int) -> None:
        """As in the base, while nothing was forgotten.

        Raises:
            ValueError: if something was.
        """
        if tokens_to_remove and self.first:
            raise ValueError(
                "A cache that forgot tokens cannot go back. Write without an assistant model, or with dense attention: "
                "collab lengthen MODEL OUT --attention dense."
            )
        super().crop(tokens_to_remove)
        self.length -= abs(tokens_to_remove)

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Adds tokens, and returns what is held with them."""
        self.length += key_states.shape[2]
        return super().update(key_states, value_states)

    def read(self, key: Tensor, value: Tensor, tokens: Tokens) -> Iterator[Held]:
        """What tokens that are added see, piece by piece; forgets what none that follows a piece sees.

        Args:
            key: of these tokens, (B, ·, T, ·).
            value: of these tokens, (B, ·, T, ·).
            tokens: which tokens are there, up to the last of these.
        """
        before, end = self.length, self.length + key.shape[2]
        while self.length < end:
            self._forget(tokens)
            piece = range(self.length, min(self._end_of_piece(tokens), end))
            part = slice(piece.start - before, piece.stop - before)
            keys, values = self.update(key[:, :, part], value[:, :, part])
            known, groups, old = self._groups, self._groups_seen(piece[-1], tokens), self._old
            if len(groups) > len(known):
                members, parts = self._members(groups[len(known) :], tokens)
                keys, values = (
                    torch.cat([each[:, :, :old], self._summarized(each, members, parts), each[:, :, old:]], dim=2)
                    for each in (keys, values)
                )
            groups = range(max(len(groups), len(known)))
            yield Held(part, keys, values, self._mask(piece, groups, tokens, keys), groups)
        self._forget(tokens)

    def by_token(self, weights: Tensor, held: Held, tokens: Tokens, total: int) -> Tensor:
        """Weights of what is held, (B, H, T, n), as those of all tokens, (B, H, T, S).

        The weight of a group counts as those of its tokens, whose key and value it is the mean of.

        Args:
            weights: (B, H, T, n).
            held: what they are of, which is what was read last.
            tokens: as for `read`.
            total: S.
        """
        whole = weights.new_zeros(*weights.shape[:3], total)
        apart, count = self._apart, len(held.groups)
        start, groups, last = weights.split([apart, count, weights.shape[3] - apart - count], dim=3)
        whole[..., self.first : self.length] = last
        firsts = tokens.starts.unsqueeze(1) + torch.arange(apart, device=weights.device)  # (1 or B, g)
        whole = whole.scatter_add(3, firsts[:, None, None].expand_as(start), start)
        members, parts = self._members(held.groups, tokens)
        shares = (groups.unsqueeze(-1) * parts[:, None, None].to(weights.dtype)).flatten(3)  # (B, H, T, C·n)
        places = members.flatten(1).clamp(max=total - 1)  # those beyond are of groups that no token sees yet
        return whole.scatter_add(3, places[:, None, None].expand_as(shares), shares)

    @property
    def _apart(self) -> int:
        """The number of first tokens of each row that are held apart from the last ones."""
        return self.long.global_tokens if self.first else 0

    @property
    def _groups(self) -> range:
        """Numbers of the groups that are held."""
        forgets = self.long.summaries is not None and self.first
        return range((self.first - self.start) // self.count if forgets else 0)

    @property
    def _old(self) -> int:
        """The number of keys before those of the last tokens."""
        return self._apart + len(self._groups)

    def _start(self, tokens: Tokens) -> int:
        """The index where the groups of the row that begins first begin."""
        return self.start if self.first else tokens.first[0] + self.long.global_tokens

    def _near(self, start: int, index: int) -> int:
        """The index of the first neighbour that a token sees in a row that begins at some index."""
        begin, size = start + self.long.global_tokens, self.long.block
        return begin + ((index - begin) // size - 1) * size

    def _end_of_piece(self, tokens: Tokens) -> int:
        """Where the piece that begins with the next token ends: with a block of the row that begins first."""
        dense = self.long.dense_below - 1
        if self.length < tokens.first[0] + dense:
            return min(tokens.first[0] + dense, self.length + max(dense, self.long.block))
        start, size = tokens.first[0] + self.long.global_tokens, self.long.block
        return start + ((self.length - start) // size + 1) * size

    def _groups_seen(self, index: int, tokens: Tokens) -> range:
        """Numbers of the groups that tokens up to an index see in any row."""
        short = index + 1 - tokens.first[0] < self.long.dense_below
        if self.long.summaries is None or short:
            return range(0)
        near = max(self._near(start, index) for start in tokens.first)
        return range(max(0, -((self._start(tokens) - near) // self.count)))

    def _numbers(self, groups: range, tokens: Tokens) -> Tensor:
        """The numbers that groups have in each row, (1 or B, C); negative ones are before its first token."""
        later = tokens.starts + self.long.global_tokens - self._start(tokens)  # (1 or B,)
        numbers = torch.arange(groups.start, groups.stop, device=later.device)
        return numbers - (later // self.count).unsqueeze(1)

    def _members(self, groups: range, tokens: Tokens) -> tuple[Tensor, Tensor]:
        """Indices of the tokens of groups, and the part that each has in the key and value, (1 or B, C, n)."""
        numbers = self._numbers(groups, tokens).unsqueeze(2)  # (1 or B, C, 1)
        begin = (tokens.starts + self.long.global_tokens)[:, None, None]
        members = begin + numbers * self.count + torch.arange(self.count, device=numbers.device)
        there = (tokens.at(members.flatten(1)).view_as(members) & (numbers >= 0)).to(self.dtype)
        if self.long.summaries is not None and self.long.grouping[0] == "stride":
            return members, functional.pad(there[..., :1], (0, self.count - 1))
        return members, there / there.sum(dim=-1, keepdim=True).clamp(min=1)

    def _summarized(self, held: Tensor, members: Tensor, parts: Tensor) -> Tensor:
        """One entry for each group, (B, ·, C, ·), of what is held, (B, ·, n, ·); members and parts of `_members`."""
        columns = (members - self.first + self._old).clamp(max=held.shape[2] - 1)  # (1 or B, C, n)
        if self.long.grouping[0] == "stride":
            return _chosen(held, columns[..., 0])
        grouped = _chosen(held, columns.flatten(1)).unflatten(2, columns.shape[1:])  # (B, ·, C, n, ·)
        return (parts[:, None, :, None].to(held.dtype) @ grouped).squeeze(3)

    def _mask(self, piece: range, groups: range, tokens: Tokens, keys: Tensor) -> Tensor | None:
        """The mask of a piece, see `Held`."""
        long, apart = self.long, self._apart
        if tokens.there is None and len(piece) == 1:  # everything that is held is seen
            if not groups:
                return None
            mask = keys.new_zeros(1, 1, 1, keys.shape[2])
            mask[..., apart : apart + len(groups)] = math.log(self.count)
            return mask
        if tokens.there is None and not piece.start and piece.stop < long.dense_below:
            return None
        hidden, nothing = torch.finfo(keys.dtype).min / 2, keys.new_zeros(1)
        starts = tokens.starts.unsqueeze(1)
        queries = torch.arange(piece.start, piece.stop, device=keys.device) - starts  # places, (1 or B, T)
        last = (torch.arange(self.first, piece.stop, device=keys.device) - starts).unsqueeze(1)  # (1 or B, 1, n)
        block = self._block(queries).unsqueeze(2)
        dense = (queries + 1 < long.dense_below).unsqueeze(2)  # (1 or B, T, 1)
        near = self._block(last) >= block - 1  # (1 or B, T, n)
        seen = near & (last >= apart) if self.first else near | (last < long.global_tokens) | dense
        seen = seen & (last >= 0) & (last <= queries.unsqueeze(2))
        if tokens.there is not None:
            seen = seen & tokens.there[:, None, self.first : piece.stop]
        masks = [torch.where(seen, nothing, hidden)]
        if groups:
            number = self._numbers(groups, tokens).unsqueeze(1)  # (1 or B, 1, C)
            members, parts = self._members(groups, tokens)
            far = (number * self.count // long.block <= block - 2) & ~dense & (parts.sum(dim=2) > 0).unsqueeze(1)
            counts = tokens.at(members.flatten(1)).view_as(members).sum(dim=2).clamp(min=1)
            masks.insert(0, torch.where(far, counts.to(self.dtype).log().unsqueeze(1), hidden))
        if apart:
            firsts = tokens.at(starts + torch.arange(apart, device=keys.device)).unsqueeze(1)
            masks.insert(0, torch.where(firsts, nothing, hidden).expand(-1, len(piece), -1))
        return torch.cat(masks, dim=2).unsqueeze(1)

    def _block(self, places: Tensor) -> Tensor:
        """The number of the block that each place is in; negative for the first tokens, and for what is before."""
        return (places - self.long.global_tokens).div(self.long.block, rounding_mode="floor")

    def _forget(self, tokens: Tokens) -> None:
        """Forgets what no token to come sees."""
        short = self.length + 1 < tokens.first[-1] + self.long.dense_below
        if short or self.keys is None or self.values is None:
            return
        start = self._start(tokens)
        near = min(self._near(each, self.length) for each in tokens.first)
        first = start + (near - start) // self.count * self.count
        if first <= max(start, self.first):
            return
        old, last = self._old, self._old + first - self.first
        firsts = torch.arange(self.long.global_tokens, device=self.keys.device) + tokens.starts.unsqueeze(1)
        forgotten = self._members(range(len(self._groups), (first - start) // self.count), tokens)

        def kept(held: Tensor) -> Tensor:
            parts = [held[:, :, :old] if self.first else _chosen(held, firsts), held[:, :, last:]]
            if self.long.summaries is not None:
                parts.insert(1, self._summarized(held, *forgotten))
            return torch.cat(parts, dim=2)

        self.keys, self.values = kept(self.keys), kept(self.values)
        self.first, self.start = first, start


def forgetting_layer(cache: Any, number: int, long: LongRows, length: int) -> ForgettingLayer | None:
    """The layer of a cache that forgets, in place of a dynamic one as soon as its rows are long; None before.

    Args:
        cache: a transformers cache.
        number: of the attention layer.
        long: the shape of the attention.
        length: number of tokens to come.

    Raises:
        ValueError: if the cache holds tokens in another way, and may hold long rows.
    """
    while cache.layer_class_to_replicate is not None and len(cache.layers) <= number:
        cache.layers.append(cache.layer_class_to_replicate())
    layer = cache.layers[number]
    if isinstance(layer, ForgettingLayer):
        return layer
    if type(layer) is not DynamicLayer or cache.offloading:
        if 0 <= layer.get_max_length() < long.dense_below:
            return None
        raise ValueError(
            f"A model with long rows in blocks forgets tokens, and {type(cache).__name__} has layers of its own "
            f"({type(layer).__name__}{', offloaded' if cache.offloading else ''}) for rows of {long.dense_below} "
            "tokens or more. Use the dynamic cache, which is the default, or dense attention: collab lengthen MODEL "
            "OUT --attention dense."
        )
    if layer.get_seq_length() + length < long.dense_below:
        return None
    cache.layers[number] = made = ForgettingLayer.of(layer, long)
    return made


def _chosen(tensor: Tensor, columns: Tensor) -> Tensor:
    """Some entries of each row, (B, ·, n, ·), of (B, ·, S, ·); columns (1 or B, n)."""
    if len(columns) == 1:
        return tensor.index_select(2, columns[0])
    return tensor.take_along_dim(columns[:, None, :, None], dim=2)
