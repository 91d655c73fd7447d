"""A small disk of its own, to fill."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path


class CannotMountError(Exception):
    """This user or system may not mount disks."""


@contextlib.contextmanager
def small_disk(folder: Path, size: int) -> Iterator[Path]:
    """Mounts a disk of some bytes, kept in memory, on a new folder, and unmounts it at the end.

    Raises:
        CannotMountError: if that is not permitted here; the message says why.
    """
    if shutil.which("mount") is None or not os.path.exists("/proc/mounts"):
        raise CannotMountError("There is no mount command for disks in memory.")
    folder.mkdir()
    try:
        _mount("-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder))
    except subprocess.CalledProcessError as error:
        raise CannotMountError(error.stderr.strip()) from error
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def change(disk: Path, option: str) -> None:
    """Changes a mounted disk: `ro`, or `size=BYTES`."""
    _mount("-o", f"remount,{option}", str(disk))


def _mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True, capture_output=True, text=True)
