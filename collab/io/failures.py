"""Errors of collab for all that libraries raise on damaged files, full disks and too little memory."""

from __future__ import annotations

import contextlib
import errno
import pickle
from collections.abc import Iterator

from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError

from ..errors import CheckpointError, CollabError, OutOfMemoryError, OutputError, first_line, is_short_of_memory

_FULL = ("No space left", "File too large", "Disk quota exceeded", "file write failed", "failed writing file")
_TORCH_FULL = ("iostream error", "inline_container")  # all that torch.save says of a full disk, at times
_FILE_SYSTEM = (
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EFBIG,
    errno.EROFS,
    errno.EACCES,
    errno.EPERM,
    errno.EIO,
    errno.ENAMETOOLONG,
    errno.EXDEV,
    errno.EBUSY,
    errno.ENOTEMPTY,
    errno.EEXIST,
    errno.ENOTDIR,
)


@contextlib.contextmanager
def reading(what: str) -> Iterator[None]:
    """Turns whatever is raised while files from elsewhere are read into an error that names them.

    Libraries fail on damaged files in ways of their own, so every exception counts.

    Args:
        what: what is read, to begin a sentence with.

    Raises:
        CheckpointError: if it cannot be read.
        OutOfMemoryError: if it does not fit into memory.
    """
    try:
        yield
    except CollabError:
        raise
    except pickle.UnpicklingError as error:
        raise CheckpointError(
            f"{what} could not be read: it is a pickle of more than plain weights, and unpickling it could run any "
            "code. Save it as safetensors where you trust it: model.save_pretrained(folder)."
        ) from error
    except Exception as error:
        if is_short_of_memory(error):
            raise OutOfMemoryError(f"{what} did not fit into memory. Use a machine with more, or free some.") from error
        raise CheckpointError(f"{what} could not be read: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    """The reason, in a line; the errors of config classes have it in their cause."""
    cause = error.__cause__ if isinstance(error, StrictDataclassError) and error.__cause__ is not None else error
    return f"{type(cause).__name__}: {first_line(cause)}" if isinstance(cause, LookupError) else first_line(cause)


@contextlib.contextmanager
def writing(what: str, left: str = "Nothing was left behind.") -> Iterator[None]:
    """Turns what a full or failing disk raises into an OutputError.

    Args:
        what: what is written, to begin a sentence with.
        left: what is there afterwards, as a sentence.

    Raises:
        OutputError: if the file system fails.
    """
    try:
        yield
    except CollabError:
        raise
    except (OSError, RuntimeError, SafetensorError) as error:
        if not _is_file_system_failure(error):
            raise
        vague = any(text in str(error) for text in _TORCH_FULL)
        reason = "no space is left, or the disk fails" if vague else first_line(error).rstrip(".")
        raise OutputError(f"{what} could not be written: {reason}. {left}") from error


def _is_file_system_failure(error: Exception) -> bool:
    if isinstance(error, OSError):
        return error.errno in _FILE_SYSTEM
    return isinstance(error, SafetensorError) or any(text in str(error) for text in (*_FULL, *_TORCH_FULL))
