"""`collab` and `python -m collab`: the command line as a program, which is not interrupted by a traceback.

Python's own handler would raise an exception in the middle of the imports below. Commands handle signals themselves
(`cli.interrupts`).
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from types import FrameType

_SIGNALS = [
    number
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler)  # a background job ignores some
]


def _stop(number: int, frame: FrameType | None) -> None:
    os.write(2, b"Error: Interrupted. Nothing was written.\n")
    os._exit(1)


for _number in _SIGNALS:
    signal.signal(_number, _stop)

from .cli import main as _main  # noqa: E402
from .processes import processes  # noqa: E402


def main() -> None:
    """Runs the command line."""
    try:
        _main()
    except SystemExit as ended:
        if processes() > 1 and isinstance(ended.code, int):
            _end(ended.code)
        raise
    finally:
        for number in _SIGNALS:  # all is done: Python only cleans up
            signal.signal(number, signal.SIG_IGN)


def _end(code: int) -> None:
    """Ends one of several processes, whose work is done, without Python's cleaning up.

    Threads that torch keeps for the others can abort the process in it, which the launcher would report as a failure.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):  # nobody reads it any more
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
