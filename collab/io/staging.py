"""A folder that appears whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ..errors import OutputError
from .failures import writing

MANIFEST = "collab_files.txt"


def check_output(output: Path, source: Path | None = None, overwrite: bool = False) -> None:
    """Checks, before any work is done, that a model can be written to `output`.

    Args:
        output: folder to write the model to.
        source: folder that it is read from; never overwritten, even with `overwrite`.
        overwrite: whether what collab wrote there earlier may be replaced.

    Raises:
        OutputError: if it cannot; the message says why.
    """
    try:
        str(output).encode()
        target = output.resolve()
        taken = _is_there(output)
    except (OSError, ValueError, RuntimeError) as error:  # a NUL, no Unicode, or a link to itself
        raise OutputError(f"{str(output)[:200]!r} cannot be created: {error}.") from error
    if source is not None:
        origin = source.resolve()
        if target == origin:
            raise OutputError(f"The output folder is the input folder, {output}. Choose another.")
        if origin in target.parents:
            raise OutputError(f"The output folder {output} is inside the input folder. Choose another.")
        if target in origin.parents:
            raise OutputError(f"The input is inside the output folder {output}. Choose another.")
    if taken:
        if not target.is_dir():
            raise OutputError(f"{output} is not a folder. Choose a name that does not exist yet.")
        foreign = _foreign_files(target)
        if foreign and not (target / MANIFEST).is_file():
            raise OutputError(
                f"{output} exists already, and collab did not write it: it holds {', '.join(foreign[:3])}"
                f"{' and more' if len(foreign) > 3 else ''}. Choose another folder."
            )
        if foreign:
            raise OutputError(
                f"{output} holds files that collab did not write and that would be lost: {', '.join(foreign[:5])}"
                f"{' and more' if len(foreign) > 5 else ''}. Move them or choose another folder."
            )
        if any(target.iterdir()) and not overwrite:
            raise OutputError(f"{output} exists already. Pass overwrite=True (--overwrite) to replace it.")
    try:
        _partial_folder(target).rmdir()
    except OSError as error:
        raise OutputError(f"{output} cannot be created: {error}.") from error


def try_writing(folder: Path) -> None:
    """Raises an OSError if nothing can be written to a folder: trying is a test for every user and file system."""
    Path(tempfile.mkdtemp(prefix=".collab.", dir=folder)).rmdir()


def _partial_folder(target: Path) -> Path:
    """Makes a hidden folder beside one that is to be, or where its parents will be."""
    where = _nearest_existing(target.parent)
    return Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".partial", dir=where))


def record_files(folder: Path) -> None:
    """Lists a finished folder's files in a manifest, so that a later run overwrites no other files."""
    names = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    (folder / MANIFEST).write_text("\n".join(sorted([*names, MANIFEST])) + "\n", encoding="utf-8")


def _foreign_files(folder: Path) -> list[str]:
    """Files in a folder that collab did not write."""
    manifest = folder / MANIFEST
    written = set(manifest.read_text(encoding="utf-8").splitlines()) if manifest.is_file() else set()
    names = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()]
    return sorted(set(names) - written)


def check_space(output: Path, needed: int, takes: str = "takes") -> None:
    """Checks that `needed` bytes fit where `output` will be. The message says that the model `takes` them.

    Raises:
        OutputError: if they do not.
    """
    free = shutil.disk_usage(_nearest_existing(output.resolve().parent)).free
    if free < needed:
        raise OutputError(
            f"The model {takes} {needed / 1e6:.1f} MB, but only {free / 1e6:.1f} MB are free at {output}. Nothing was "
            "written."
        )


@contextlib.contextmanager
def atomic_write(file: Path) -> Iterator[Path]:
    """Yields a temporary path that is renamed to `file` on success and deleted on failure.

    It has the suffix of `file`, by which some writers choose the format.
    """
    handle, name = tempfile.mkstemp(prefix=f".{file.stem}.", suffix=f".partial{file.suffix}", dir=file.parent)
    os.close(handle)
    partial = Path(name)
    try:
        yield partial
        _open_up(partial)
        partial.replace(file)
    finally:
        partial.unlink(missing_ok=True)


@contextlib.contextmanager
def scratch_folder(output: Path) -> Iterator[Path]:
    """Yields a hidden folder where `output` will be, for what need not stay in memory; it is deleted at the end.

    Raises:
        OutputError: if it cannot be made.
    """
    target = output.resolve()
    with writing(f"A folder beside {output}", "Nothing was written."):
        folder = _partial_folder(target)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def staged(output: Path, overwrite: bool = False) -> Iterator[Path]:
    """Yields a temporary folder that is renamed to `output` on success and deleted on failure.

    It is created beside `output`, so that the last step is a rename. An earlier `output` is replaced only then.

    Args:
        output: the folder.
        overwrite: whether to replace an existing folder; if not, one that has appeared meanwhile is left as it is.

    Raises:
        OutputError: if the file system fails.
    """
    target = output.resolve()
    created: list[Path] = []
    staging: Path | None = None
    try:
        try:
            _create_parents(target.parent, created)
            staging = _partial_folder(target)
        except OSError as error:
            raise OutputError(f"{output} cannot be created: {error}.") from error
        with writing(str(output)):
            yield staging
            record_files(staging)
            _open_up(staging)
            try:
                if overwrite and target.exists():
                    check_output(output, overwrite=True)  # nobody may have put anything there meanwhile
                    _swap(staging, target)
                else:
                    staging.rename(target)  # onto nothing or an empty folder
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT, errno.ENOTDIR):
                    raise
                raise OutputError(
                    f"{output} appeared or changed while this was running; another command may be writing it. It was "
                    "left as it is, and nothing was written."
                ) from error
    finally:
        if staging is not None:
            shutil.rmtree(staging, ignore_errors=True)
        if not os.path.lexists(target):
            for folder in reversed(created):
                with contextlib.suppress(OSError):
                    folder.rmdir()


def _swap(staging: Path, target: Path) -> None:
    """Puts `staging` in the place of `target`; the old folder is deleted only once the new one is there.

    An interrupt may come at any line, also after a folder was moved and before the next line knows of it.
    """
    aside = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".old", dir=target.parent))
    old = aside / target.name
    try:
        target.rename(old)
        staging.rename(target)
    finally:
        if old.exists() and not os.path.lexists(target):
            old.rename(target)
        if not (old.exists() and staging.exists()):  # else something else is in the place of both
            try:
                shutil.rmtree(aside, ignore_errors=True)
            except KeyboardInterrupt:  # all that was asked for is done, so finish
                shutil.rmtree(aside, ignore_errors=True)


def _create_parents(folder: Path, created: list[Path]) -> None:
    """Creates a folder and those above it, noting in `created` the ones that were not there, outermost first."""
    if not folder.exists():
        _create_parents(folder.parent, created)
        folder.mkdir()
        created.append(folder)


def _is_there(path: Path) -> bool:
    """Whether a path is taken; raises an OSError where it never could be, such as a name that is too long."""
    try:
        path.lstat()
    except FileNotFoundError:
        return False
    return True


def _nearest_existing(folder: Path) -> Path:
    while not folder.exists():
        folder = folder.parent
    return folder


def _open_up(top: Path) -> None:
    """Gives a file, or a folder and its files, the permissions of new ones: what is temporary is private."""
    mask = os.umask(0)  # which can only be read by setting it
    os.umask(mask)
    for path in [top, *top.rglob("*")]:
        with contextlib.suppress(OSError):  # some file systems, such as those of memory cards, have no permissions
            path.chmod((0o777 if path.is_dir() else 0o666) & ~mask)
