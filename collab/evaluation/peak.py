"""The peak memory of one model on a CPU, in a process that does nothing else.

In a process that has run other things, freed memory is used again and the peak is theirs. So this module is run as a
program of its own, ``python -m collab.evaluation.peak REQUEST``, and prints what it found as JSON.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from pathlib import Path

import torch

from ..errors import OutOfMemoryError
from ..io.load import load
from ..models.inputs import random_inputs
from .bench import too_large
from .bench_report import Memory

_STATUS = Path("/proc/self/status")


def peak_memory(
    folder: Path, rows: int, length: int | None, dtype: torch.dtype, threads: int
) -> tuple[Memory | None, str | None]:
    """Peak resident memory of running a model at one batch size and length.

    Args:
        folder: of the model.
        rows: B.
        length: T; None for images.
        dtype: of weights and arithmetic.
        threads: of torch.

    Returns:
        The memory, or None and the reason.

    Raises:
        OutOfMemoryError: if the process was stopped for want of memory.
    """
    if not _STATUS.is_file():
        return None, "Peak memory was not measured: this system has no /proc, which says what a process took."
    request = {
        "folder": str(folder),
        "rows": rows,
        "length": length,
        "dtype": str(dtype).removeprefix("torch."),
        "threads": threads,
    }
    done = subprocess.run(
        [sys.executable, "-m", __name__, json.dumps(request)],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    if done.returncode == -9 or "can't allocate memory" in done.stderr:
        raise OutOfMemoryError(too_large(rows, length))
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        return None, f"Peak memory was not measured: the process for it failed with {last}"
    return Memory(**json.loads(done.stdout.splitlines()[-1])), None


def _status(field: str) -> int:
    """A field of this process's status, in bytes: VmRSS, what it holds now, or VmHWM, the most that it held."""
    line = next(line for line in _STATUS.read_text().splitlines() if line.startswith(f"{field}:"))
    return int(line.split()[1]) * 1024


def _main(request: dict) -> None:
    torch.set_num_threads(request["threads"])
    libraries = _status("VmRSS")
    model = load(request["folder"]).model.to(getattr(torch, request["dtype"]))
    with contextlib.suppress(OSError):  # where it may not, the peak is that of loading if that is higher
        Path("/proc/self/clear_refs").write_text("5")  # forgets the peak so far
    with torch.no_grad():
        model(**random_inputs(model, request["rows"], request["length"] or 1))
    print(json.dumps({"peak_bytes": _status("VmHWM"), "libraries_bytes": libraries}))


if __name__ == "__main__":
    _main(json.loads(sys.argv[1]))
