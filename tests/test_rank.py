"""Ranks as users write them."""

from __future__ import annotations

import numpy as np
import pytest

from collab.decomposition.rank import resolve_rank, resolve_ranks
from collab.errors import RankError


@pytest.mark.parametrize(
    ("rank", "expected"),
    [(1, 1), (12, 12), (np.int64(5), 5), (1.0, 12), (0.5, 6), (0.3, 4), (0.001, 1), (np.float32(0.25), 3)],
)
def test_one(rank: int | float, expected: int) -> None:
    assert resolve_rank(rank, 12) == expected


@pytest.mark.parametrize("rank", [0, -1, 13, 0.0, -0.5, 1.5, 128.0, float("nan"), float("inf"), True, "8", None])
def test_out_of_range(rank: object) -> None:
    with pytest.raises(RankError):
        resolve_rank(rank, 12)  # type: ignore[arg-type]


def test_messages_say_what_to_write() -> None:
    with pytest.raises(RankError, match="from 1 to 12"):
        resolve_rank(13, 12)
    with pytest.raises(RankError, match="For 128 dimensions write 128"):
        resolve_rank(128.0, 384)


def test_for_each_layer() -> None:
    assert resolve_ranks(4, [12, 8]) == [4, 4]
    assert resolve_ranks(0.5, [12, 8]) == [6, 4]
    assert resolve_ranks([3, 0.5], [12, 8]) == [3, 4]
    with pytest.raises(RankError, match="3 ranks were given for 2 attention layers"):
        resolve_ranks([1, 2, 3], [12, 8])
    with pytest.raises(RankError):
        resolve_ranks([3, 9], [12, 8])
