"""Ranks as a user gives them, resolved to a number of shared dimensions for each layer."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any

from ..errors import RankError

Rank = int | float
"""An integer R ≥ 1, or a fraction of K in (0, 1]. ``1`` is one dimension, ``1.0`` all of them."""


def plain_rank(rank: Any) -> Rank | list[Rank]:
    """Converts a rank, or a sequence of them, to plain Python numbers; NumPy arrays and tensors are accepted.

    Raises:
        RankError: if an entry is not a number.
    """
    if hasattr(rank, "tolist"):
        rank = rank.tolist()
    if isinstance(rank, Sequence) and not isinstance(rank, str):
        return [_plain(entry) for entry in rank]
    return _plain(rank)


def _plain(rank: Any) -> Rank:
    if isinstance(rank, bool) or not isinstance(rank, Real):
        raise RankError(f"A rank must be a whole number or a fraction, not {rank!r}.")
    return int(rank) if isinstance(rank, Integral) else float(rank)


def resolve_rank(rank: Rank, full_rank: int) -> int:
    """The number of shared query/key dimensions of one layer.

    Args:
        rank: an integer from 1 to K, or a fraction of K in (0, 1], rounded to the nearest dimension, at least one.
        full_rank: K.

    Raises:
        RankError: if it is neither.
    """
    rank = _plain(rank)
    if isinstance(rank, int):
        if not 1 <= rank <= full_rank:
            raise RankError(
                f"Rank {rank} is out of range: these layers have K = {full_rank} query/key dimensions, so a rank is "
                f"from 1 to {full_rank} (where the model is exact), or a fraction of K such as 0.5."
            )
        return rank
    if not 0 < rank <= 1:
        hint = f" For {int(rank)} dimensions write {int(rank)}." if rank > 1 and float(rank).is_integer() else ""
        raise RankError(
            f"A fractional rank is a part of K = {full_rank} and must be above 0 and at most 1, not {rank}.{hint}"
        )
    return max(1, round(rank * full_rank))


def resolve_ranks(rank: Rank | Sequence[Rank], full_ranks: Sequence[int]) -> list[int]:
    """The number of shared query/key dimensions of each attention layer.

    Args:
        rank: a rank for all layers, or a sequence with one for each layer in the order of the model.
        full_ranks: K of each layer.

    Raises:
        RankError: if a rank is out of range or there is not one for each layer.
    """
    ranks = list(rank) if isinstance(rank, Sequence) and not isinstance(rank, str) else [rank] * len(full_ranks)
    if len(ranks) != len(full_ranks):
        raise RankError(
            f"{len(ranks)} ranks were given for {len(full_ranks)} attention layers; give one rank, or one for each."
        )
    return [resolve_rank(*pair) for pair in zip(ranks, full_ranks, strict=True)]
