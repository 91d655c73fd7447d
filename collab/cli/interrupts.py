"""Signals that ask a command to end."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any


class Interrupts:
    """Makes a request to terminate an interruption, which cleans up, and counts either.

    While it cleans up, a second request changes nothing; a third ends the process at once. So does the first while
    libraries are imported.

    Attributes:
        last_words: called before the process is ended at once.
        count: how many there have been.
        importing: whether libraries are being imported.
    """

    def __init__(self, last_words: Callable[[], None]) -> None:
        self.last_words = last_words
        self.count = 0
        self.importing = False

    @contextlib.contextmanager
    def handled(self) -> Iterator[None]:
        """Handles them until the block ends."""
        numbers = [signal.SIGTERM, signal.SIGHUP, signal.SIGINT]
        # A job in the background ignores some.
        numbers = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
        previous = {number: signal.signal(number, self._interrupt) for number in numbers}
        hook = sys.unraisablehook

        def unraisable(error: Any) -> None:
            if not isinstance(error.exc_value, KeyboardInterrupt):  # in a finalizer, which cannot pass it on
                hook(error)

        sys.unraisablehook = unraisable
        try:
            yield
        finally:
            sys.unraisablehook = hook
            for number, handler in previous.items():
                signal.signal(number, handler)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        if self.importing or self.count > 2:
            # An exception in the middle of torch's import can abort the process, and nothing is to clean up yet.
            self.last_words()
            os._exit(1)
        if self.count == 1:
            raise KeyboardInterrupt
