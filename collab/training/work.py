"""The work folder of an unfinished run: which run it belongs to, and which of its checkpoints are complete."""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path

from filelock import FileLock, Timeout

from ..data.targets import WRITTEN
from ..device import Dtype
from ..errors import ConfigurationError, TrainingError
from ..io.failures import writing
from ..io.staging import atomic_write
from ..io.unfinished import CHOSEN, WHOLE
from ..processes import check_seen, from_main, is_main_process, processes, wait_for_everyone

BEGUN = "begun-*.safetensors"
"""The files that keep the weights that a training began with."""

_RECORD, _LOCK = "run.json", "lock"
_PARTIAL = ".run.*.partial.json", ".chosen-*.partial.json", ".begun-*.partial.safetensors"
_KEPT = WRITTEN, CHOSEN, BEGUN
"""What may be there before a run, and serves the same one if it is repeated."""

LEFT = "What was kept before is there, and the same command goes on from it."
"""What is left where unfinished work cannot be written."""


@contextlib.contextmanager
def exclusive_lock(work: Path) -> Iterator[None]:
    """Keeps a work folder for this command, until the block ends or the process dies. The main process has the lock.

    Raises:
        TrainingError: if another command has it, the folder cannot be made, or a process does not see it.
    """
    lock = _locked(work) if is_main_process() else None
    try:
        _check_shared(work)
        yield
    finally:
        if lock is not None:
            if not (work / _RECORD).is_file():  # nothing was trained from them
                for begun in work.glob(BEGUN):
                    begun.unlink(missing_ok=True)
            lock.release()
            if work.is_dir() and not _holds_something(work) and not any(any(work.glob(kept)) for kept in _KEPT):
                shutil.rmtree(work, ignore_errors=True)


def _locked(work: Path) -> FileLock:
    """The lock of a work folder, which is made where it is missing."""
    _check_own(work)
    with writing(str(work)):
        work.mkdir(parents=True, exist_ok=True)
        lock = FileLock(work / _LOCK)
        try:
            lock.acquire(blocking=False)
        except Timeout as error:
            raise TrainingError(
                f"Another command is working in {work}, for the same output. Wait until it has finished, or choose "
                "another output."
            ) from error
    return lock


def _check_shared(work: Path) -> None:
    """Raises a TrainingError if a process, on another machine, does not see the work folder of the main process."""
    if processes() == 1:
        return
    mark = work / from_main(lambda: f".run.{uuid.uuid4().hex}.partial.json")
    try:
        if is_main_process():
            mark.touch()
        wait_for_everyone()
        check_seen(mark, work, TrainingError)
    finally:
        if is_main_process():
            mark.unlink(missing_ok=True)


def _check_own(work: Path) -> None:
    """Raises a TrainingError if a work folder is there that holds anything but unfinished work."""
    if work.exists() and not (work / _RECORD).is_file() and (not work.is_dir() or _holds_something(work)):
        raise TrainingError(f"{work} exists already, but is needed for unfinished work. Move it away.")


@contextlib.contextmanager
def temporary_work(work: Path | None) -> Iterator[Path]:
    """Yields the given work folder, or a temporary one."""
    if work is not None:
        yield work
        return
    if processes() > 1:
        raise ConfigurationError("Several processes need a shared work folder: pass work=...")
    with tempfile.TemporaryDirectory(prefix="collab.") as folder:
        yield Path(folder) / "work"


def finish(work: Path) -> None:
    """Deletes a work folder once all processes have finished with it."""
    wait_for_everyone()
    if is_main_process():
        shutil.rmtree(work, ignore_errors=True)


@dataclass(frozen=True)
class Start:
    """The beginning of a run, kept for when it is resumed.

    Attributes:
        before: metrics on the held-out rows before the first step.
        learning_rate: the highest learning rate, given or found by trying.
        precision: the precision that it computes in, given or the one that was faster.
    """

    before: dict[str, float]
    learning_rate: float
    precision: Dtype


def open_work(work: Path, fingerprint: str, restart: bool) -> Start | None:
    """Prepares a work folder; returns the beginning of the unfinished run in it, or None if there is none."""
    _check_own(work)
    path = work / _RECORD
    if restart and is_main_process():
        _discard(work)
    work.mkdir(parents=True, exist_ok=True)
    if not path.is_file():
        return None
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        record = None
    kept = record if isinstance(record, dict) else {}
    if kept.pop("fingerprint", None) != fingerprint or kept.keys() != {field.name for field in fields(Start)}:
        raise _other(work)
    if is_main_process():
        for checkpoint in work.glob("checkpoint-*"):
            if not (checkpoint / WHOLE).is_file():
                shutil.rmtree(checkpoint)
    return Start(**kept)


def _discard(work: Path) -> None:
    """Forgets the run that a work folder belongs to."""
    (work / _RECORD).unlink(missing_ok=True)
    for entry in work.iterdir() if work.is_dir() else ():
        if entry.is_dir():
            shutil.rmtree(entry, ignore_errors=True)


def _other(work: Path) -> TrainingError:
    return TrainingError(
        f"{work} holds another run, with other settings, another model or other data. Repeat that run to finish it, or "
        "discard it with restart=True (--restart)."
    )


def check_unused(work: Path) -> None:
    """Raises a TrainingError if a work folder holds an unfinished run."""
    if (work / _RECORD).is_file():
        raise _other(work)


def make_room(work: Path, restart: bool) -> None:
    """Has a work folder, which the main process alone locks meanwhile, hold no run: with `restart`, discards it.

    Raises:
        TrainingError: if it holds one, or another command is working in it.
    """
    if not work.exists():
        return
    lock = _locked(work)
    try:
        if restart:
            _discard(work)
        check_unused(work)
    finally:
        lock.release()


def _holds_something(work: Path) -> bool:
    return any(not any(map(path.match, (_LOCK, *_KEPT, *_PARTIAL))) for path in work.iterdir())


def record_start(work: Path, fingerprint: str, start: Start) -> None:
    """Records the run that a work folder belongs to, and its beginning."""
    with atomic_write(work / _RECORD) as partial:
        partial.write_text(json.dumps({"fingerprint": fingerprint, **vars(start)}), encoding="utf-8")
