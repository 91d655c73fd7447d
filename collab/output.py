"""A folder that appears whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from safetensors import SafetensorError

from .errors import CollabError, OutputError


def check_output(output: Path, source: Path | None = None, overwrite: bool = False) -> None:
    """Makes sure, before any work is done, that a model can be written to `output`.

    Args:
        output: the folder that the model is to be in.
        source: the folder that it is read from; never overwritten, whatever `overwrite` says.
        overwrite: whether a model that is there already may be replaced.

    Raises:
        OutputError: saying what is in the way.
    """
    target = output.resolve()
    if source is not None:
        origin = source.resolve()
        if target == origin:
            raise OutputError(f"The output folder is the input folder, {output}. Give another.")
        if target in origin.parents:
            raise OutputError(f"The input is inside the output folder {output}. Give another.")
    if os.path.lexists(output):
        if not target.is_dir():
            raise OutputError(f"{output} is a file. Give the name of a folder that is not there yet.")
        occupied = any(target.iterdir())
        if occupied and not overwrite:
            raise OutputError(f"{output} is there already. Add --overwrite (overwrite=True) to replace it.")
        if occupied and not (target / "config.json").is_file():
            raise OutputError(
                f"{output} holds something other than a model, so it is not overwritten. Give another folder."
            )
    try:
        # Trying is the only test that holds for every user and file system.
        Path(tempfile.mkdtemp(prefix=".collab.", dir=_nearest_existing(target.parent))).rmdir()
    except OSError as error:
        raise OutputError(f"{output} cannot be created: {error}.") from error


def check_space(output: Path, needed: int) -> None:
    """Makes sure that `needed` bytes fit where `output` will be.

    Raises:
        OutputError: if they do not.
    """
    free = shutil.disk_usage(_nearest_existing(output.resolve().parent)).free
    if free < needed:
        raise OutputError(
            f"The model takes {needed / 1e6:.1f} MB, and {free / 1e6:.1f} MB are free where {output} would be. Nothing "
            "was written."
        )


@contextlib.contextmanager
def staged(output: Path) -> Iterator[Path]:
    """Gives a folder to write into that becomes `output` if all goes well, and is gone otherwise.

    The folder is beside `output`, so that the last step is a rename. What `output` was before is replaced then and not
    earlier.

    Raises:
        OutputError: if the file system fails.
    """
    target = output.resolve()
    created: list[Path] = []
    staging: Path | None = None
    try:
        try:
            _create_parents(target.parent, created)
            staging = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".partial", dir=target.parent))
        except OSError as error:
            raise OutputError(f"{output} cannot be created: {error}.") from error
        yield staging
        _open_up(staging)
        _swap(staging, target)
    except (OSError, SafetensorError) as error:
        if isinstance(error, CollabError) or not _is_file_system_failure(error):
            raise
        raise OutputError(f"{output} could not be written: {error}. Nothing was left behind.") from error
    finally:
        if staging is not None:
            shutil.rmtree(staging, ignore_errors=True)
        if not target.exists():
            for folder in reversed(created):
                with contextlib.suppress(OSError):
                    folder.rmdir()


def _swap(staging: Path, target: Path) -> None:
    """Puts `staging` in the place of `target`; the old folder is deleted only once the new one is there."""
    if not target.exists():
        staging.rename(target)
        return
    aside = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".old", dir=target.parent))
    old = aside / target.name
    target.rename(old)
    try:
        staging.rename(target)
    except BaseException:
        old.rename(target)
        aside.rmdir()
        raise
    shutil.rmtree(aside, ignore_errors=True)


def _is_file_system_failure(error: Exception) -> bool:
    if isinstance(error, SafetensorError):
        return True
    return isinstance(error, OSError) and error.errno in (
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
    )


def _create_parents(folder: Path, created: list[Path]) -> None:
    """Creates a folder and those above it, noting in `created` the ones that were not there, outermost first."""
    if not folder.exists():
        _create_parents(folder.parent, created)
        folder.mkdir()
        created.append(folder)


def _nearest_existing(folder: Path) -> Path:
    while not folder.exists():
        folder = folder.parent
    return folder


def _open_up(folder: Path) -> None:
    """Gives a folder and its files the permissions of new ones: temporary folders and safetensors are private."""
    mask = os.umask(0)  # which can only be read by setting it
    os.umask(mask)
    folder.chmod(0o777 & ~mask)
    for path in folder.rglob("*"):
        path.chmod((0o777 if path.is_dir() else 0o666) & ~mask)
