"""Fragments of rows of text: short runs of their tokens, for variety."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from typing import Any

from .batches import Feature

SHORTEST, LONGEST = 2, 12
"""Tokens of a fragment, without the special ones."""


def with_fragments(features: Sequence[Feature], part: float, tokenizer: Any, seed: int) -> list[Feature]:
    """Cuts some rows of text to a fragment: a run of 2 to 12 of their tokens between their special ones.

    Rows that hold special tokens in their middle, as pairs do, and rows that are hardly longer than a fragment stay as
    they are.

    Args:
        features: rows of text.
        part: the probability of a row to be cut.
        tokenizer: knows the special tokens.
        seed: random seed.

    Returns:
        As many rows, in the same order.
    """
    special = {number for number in tokenizer.all_special_ids if number != tokenizer.unk_token_id}
    generator = random.Random(seed)
    return [_fragment(row, special, generator) if generator.random() < part else row for row in features]


def _fragment(row: Feature, special: Collection[int], generator: random.Random) -> Feature:
    """A fragment of a row, or the row itself."""
    ids = row["input_ids"]
    places = [place for place, number in enumerate(ids) if number not in special]
    if len(places) <= SHORTEST + 1 or places[-1] - places[0] >= len(places):
        return row
    length = generator.randint(SHORTEST, min(LONGEST, len(places) - 1))
    start = generator.randint(places[0], places[-1] + 1 - length)
    return (
        row
        | {  # what a decoder reads stays whole
            name: [*values[: places[0]], *values[start : start + length], *values[places[-1] + 1 :]]
            for name, values in row.items()
            if not name.startswith("decoder_")
        }
    )
