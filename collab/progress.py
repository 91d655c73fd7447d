"""The progress callback."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, int, int | None], None]
"""Progress callback: called with the name of the phase, the units done, and the total (None if unknown)."""


def no_progress(what: str, done: int, total: int | None) -> None:
    """Reports nothing."""
