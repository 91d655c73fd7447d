"""`collab` and `python -m collab`: the command line as a program, which is not interrupted by a traceback.

Python's own handler would raise an exception in the middle of the imports below. Commands handle signals themselves
(`cli.interrupts`).
"""

from __future__ import annotations

import os
import signal
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


def main() -> None:
    """Runs the command line."""
    try:
        _main()
    finally:
        for number in _SIGNALS:  # all is done: Python only cleans up
            signal.signal(number, signal.SIG_IGN)


if __name__ == "__main__":
    main()
