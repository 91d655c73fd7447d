"""Rows of text that are cut or joined, so that a model is trained on rows of more lengths than a user's text has."""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Sequence
from typing import Any

from .batches import Feature

SHORTEST, LONGEST = 2, 12
"""Tokens of a fragment, without the special ones."""

_JOINED = 24, 256
"""Tokens of a joined row, with the special ones; most embedders cut text to 256."""


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
    special, generator = _special(tokenizer), random.Random(seed)
    return [_fragment(row, special, generator) if generator.random() < part else row for row in features]


def with_joined(features: Sequence[Feature], part: float, longest: int, tokenizer: Any, seed: int) -> list[Feature]:
    """Lengthens some rows of text by other rows, drawn at random, which follow within the same special tokens.

    Their numbers of tokens are drawn from 24 to 256, about as many from 24 to 48 as from 48 to 96. Rows that are as
    long already, or hold special tokens in their middle, as pairs do, stay as they are.

    Args:
        features: rows of text.
        part: the probability of a row to be lengthened.
        longest: tokens of the longest row that the model takes, if that is less.
        tokenizer: knows the special tokens.
        seed: random seed.

    Returns:
        As many rows, in the same order.
    """
    shortest, longest = _JOINED[0], min(_JOINED[1], longest)
    if longest < shortest:
        return list(features)
    special, generator = _special(tokenizer), random.Random(f"joined {seed}")  # not as fragments are drawn

    def length() -> int:
        return round(math.exp(generator.uniform(math.log(shortest), math.log(longest))))

    return [
        _joined(row, features, length(), special, generator) if generator.random() < part else row for row in features
    ]


def _special(tokenizer: Any) -> set[int]:
    """The special tokens that text itself has none of."""
    return {number for number in tokenizer.all_special_ids if number != tokenizer.unk_token_id}


def _content(row: Feature, special: Collection[int]) -> tuple[int, int] | None:
    """Where a row's tokens begin and end between its special ones; None if it has none, or special ones among them."""
    places = [place for place, number in enumerate(row["input_ids"]) if number not in special]
    if not places or places[-1] - places[0] >= len(places):
        return None
    return places[0], places[-1] + 1


def _fragment(row: Feature, special: Collection[int], generator: random.Random) -> Feature:
    """A fragment of a row, or the row itself."""
    content = _content(row, special)
    if content is None or content[1] - content[0] <= SHORTEST + 1:
        return row
    first, end = content
    length = generator.randint(SHORTEST, min(LONGEST, end - first - 1))
    start = generator.randint(first, end - length)
    return _between(row, content, [(row, start, start + length)])


def _joined(
    row: Feature, features: Sequence[Feature], length: int, special: Collection[int], generator: random.Random
) -> Feature:
    """A row of so many tokens that begins with the given one; itself if it has as many or cannot be lengthened."""
    content = _content(row, special)
    missing = length - len(row["input_ids"])
    if content is None or missing <= 0:
        return row
    runs = [(row, *content)]
    while missing > 0:
        other = generator.choice(features)
        place = _content(other, special)
        if place is None:
            return row
        first, end = place[0], min(place[1], place[0] + missing)
        runs.append((other, first, end))
        missing -= end - first
    return _between(row, content, runs)


def _between(row: Feature, content: tuple[int, int], runs: Sequence[tuple[Feature, int, int]]) -> Feature:
    """A row whose special tokens have runs of rows' tokens between them, each from a first place to before a last.

    What a decoder reads stays as it is.
    """
    first, end = content
    return row | {
        name: [*values[:first], *(value for run, start, stop in runs for value in run[name][start:stop]), *values[end:]]
        for name, values in row.items()
        if not name.startswith("decoder_")
    }
