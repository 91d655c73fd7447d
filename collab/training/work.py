"""The folder of unfinished work: which run it belongs to, and which of its checkpoints are whole."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ..errors import ConfigurationError, TrainingError
from ..io.staging import whole_file

WHOLE = "collab_checkpoint_is_whole"
"""A file that is put into a checkpoint last."""

_RECORD = "run.json"


def work_folder(output: Path, kind: str = "training") -> Path:
    """Where the unfinished work on an output folder is kept: beside it."""
    output = output.resolve()
    return output.with_name(f"{output.name}.{kind}")


@contextlib.contextmanager
def temporary_work(work: Path | None) -> Iterator[Path]:
    """A working folder: the one given, or one that is gone afterwards."""
    if work is not None:
        yield work
        return
    if processes() > 1:
        raise ConfigurationError("Several processes need a working folder that they share: pass work=...")
    with tempfile.TemporaryDirectory(prefix="collab.") as folder:
        yield Path(folder) / "work"


def newest_checkpoint(work: Path) -> Path | None:
    """The latest whole checkpoint of a working folder."""
    found = [path.parent for path in work.glob(f"checkpoint-*/{WHOLE}")]
    return max(found, key=lambda path: int(path.name.rpartition("-")[2]), default=None)


def drop_other_checkpoints(work: Path, *keep: str | None) -> None:
    """Deletes all checkpoints but those named. A checkpoint stops counting as whole before it starts to go."""
    for checkpoint in work.glob("checkpoint-*"):
        if str(checkpoint) not in keep and checkpoint.name not in keep:
            (checkpoint / WHOLE).unlink(missing_ok=True)
            shutil.rmtree(checkpoint, ignore_errors=True)


def finish(work: Path) -> None:
    """Deletes a working folder once every process is done with it."""
    wait_for_everyone()
    if is_main_process():
        shutil.rmtree(work, ignore_errors=True)


def wait_for_everyone() -> None:
    """Waits until every process of the training is here."""
    from accelerate import PartialState  # slow to import

    PartialState().wait_for_everyone()


def processes() -> int:
    """How many processes train together."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def local_rank() -> int:
    """Which of this machine's processes that train together this is."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def is_main_process() -> bool:
    """Whether this is the only process, or the one of several that writes."""
    return int(os.environ.get("RANK", "0")) == 0


def open_work(work: Path, fingerprint: str, restart: bool) -> dict[str, float] | None:
    """Prepares a working folder; returns what an unfinished run measured before its first step, if there is one."""
    path = work / _RECORD
    if work.exists() and not path.is_file() and (not work.is_dir() or _holds_something(work)):
        raise TrainingError(f"{work} is in the way: it is where unfinished work is kept. Move it away.")
    if restart and is_main_process():
        shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True, exist_ok=True)
    if not path.is_file():
        return None
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        record = {}
    if record.get("fingerprint") != fingerprint:
        raise TrainingError(
            f"{work} holds an unfinished run with other settings, another model or other data. Repeat its command to "
            "finish it, or add --restart to forget it."
        )
    if is_main_process():
        for checkpoint in work.glob("checkpoint-*"):
            if not (checkpoint / WHOLE).is_file():
                shutil.rmtree(checkpoint)
    return record["before"]


def _holds_something(work: Path) -> bool:
    return any(not path.match(".run.*.partial.json") for path in work.iterdir())


def record_start(work: Path, fingerprint: str, before: dict[str, float]) -> None:
    """Notes which run a folder belongs to, and what was measured before its first step."""
    with whole_file(work / _RECORD) as partial:
        partial.write_text(json.dumps({"fingerprint": fingerprint, "before": before}), encoding="utf-8")
