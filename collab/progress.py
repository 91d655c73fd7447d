"""The progress callback."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, int, int | None], None]
"""Progress callback: called with the name of the phase, the units done, and the total (None if unknown)."""


def no_progress(what: str, done: int, total: int | None) -> None:
    """Reports nothing."""


LARGE = 1_000_000_000
"""Bytes of a model from which on progress tells bytes."""


def with_bytes(what: str, total: int, done: int | None = None) -> str:
    """The name of a phase of work on a large model, with the bytes that it is of, and how many of them are done."""
    return f"{what}; {total / 1e9:.1f} GB" if done is None else f"{what}; {done / 1e9:.1f} of {total / 1e9:.1f} GB"
