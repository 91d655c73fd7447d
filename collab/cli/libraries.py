"""Imports what takes seconds, torch and transformers, and decides what they and collab's own log may say."""

from __future__ import annotations

import gc
import logging
import os
import sys
from typing import TextIO

from ..errors import OutOfMemoryError, first_line

_NEEDED = 10**9
"""Bytes of addresses that the libraries take."""

KERNELS = "4096"
"""Number of compiled kernels that oneDNN keeps, one for each shape of a product. Healing meets a few thousand: of the
1,024 kernels that oneDNN keeps by itself, most are gone before they are needed again (docs/compression.md)."""


class _Handler(logging.StreamHandler[TextIO]):
    """Writes to what standard error is at the time, so that messages and bars do not mix."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


def set_up_logging(verbosity: int) -> None:
    """Shows the messages of collab, by level.

    Args:
        verbosity: -1 for errors only, 0 for warnings too, 1 for what is done, 2 for everything.
    """
    package = logging.getLogger("collab")
    package.handlers = [_Handler()]
    package.setLevel(_level(verbosity))
    package.propagate = False


def import_libraries(verbosity: int) -> None:
    """Imports torch and transformers, silencing what other libraries say that the user can do nothing about.

    What matters of it is in collab's own messages. With a verbosity above 0 nothing is silenced.

    Raises:
        OutOfMemoryError: if the process may not have the memory that they take.
    """
    limit = _memory_limit()
    if limit is not None and limit < _NEEDED:  # some libraries end the process without a word of ours
        raise OutOfMemoryError(
            f"There is too little memory: the libraries take {_NEEDED / 1e9:.0f} GB of addresses, and this process may "
            f"have {limit / 1e9:.1f} GB (ulimit -v)."
        )
    gc.disable()  # imports make a million objects that stay: looking for garbage among them takes half a second
    try:
        _import_libraries(verbosity)
    except Exception as error:
        if limit is None:
            raise
        # What an import raises that is short of memory is anything.
        raise OutOfMemoryError(f"There is too little memory to load the libraries: {first_line(error)}") from error
    finally:
        gc.enable()
    gc.freeze()  # nor is it looked for among them later, which at the end would take another second


def _import_libraries(verbosity: int) -> None:
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", KERNELS)  # read when the first kernel is kept
    if verbosity <= 0:
        # Both read these when they are imported, and set their level by them.
        os.environ.setdefault("HF_HUB_VERBOSITY", "error")
        os.environ.setdefault("DATASETS_VERBOSITY", "error")
    import torch  # noqa: F401

    if verbosity <= 0:
        # transformers imports torchao where it is installed, which warns of kernels for other machines, and torch of
        # what torchao calls. Not before torch is imported, which sets its own level.
        for name in ("torch", "torchao"):
            logging.getLogger(name).setLevel(logging.ERROR)
    import huggingface_hub.utils
    import transformers

    transformers.logging.set_verbosity(_level(verbosity) if verbosity > 0 else logging.ERROR)
    if verbosity <= 0:
        transformers.logging.disable_progress_bar()
        huggingface_hub.utils.disable_progress_bars()


def _level(verbosity: int) -> int:
    return {-1: logging.ERROR, 0: logging.WARNING, 1: logging.INFO}.get(verbosity, logging.DEBUG)


def _memory_limit() -> int | None:
    """The bytes of addresses that this process may have (``ulimit -v``); None if there is no limit."""
    try:
        import resource
    except ImportError:  # not on Windows
        return None
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return None if limit == resource.RLIM_INFINITY else limit
