"""Peak memory of one model on a CPU, measured in a separate process.

In a process that has run other work, the model reuses freed memory and the peak belongs to that work. So this module
runs as a program, ``python -m collab.evaluation.peak REQUEST``, and prints its result as JSON.
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
from ..processes import environment_of_its_own
from .bench import too_large
from .bench_report import PeakMemory
from .worker import resident

_STATUS = Path("/proc/self/status")


def peak_memory(
    folder: Path, rows: int, length: int | None, dtype: torch.dtype, threads: int
) -> tuple[PeakMemory | None, str | None]:
    """Peak resident memory of running a model at one batch size and length.

    Args:
        folder: folder of the model.
        rows: batch size B.
        length: tokens T; None for images.
        dtype: dtype of weights and arithmetic.
        threads: number of torch threads.

    Returns:
        The memory and None, or None and the reason why it was not measured.

    Raises:
        OutOfMemoryError: if memory ran out.
    """
    if not _STATUS.is_file():
        return None, "Peak memory was not measured: this system has no /proc to read it from."
    request = {
        "folder": str(folder),
        "rows": rows,
        "length": length,
        "dtype": str(dtype).removeprefix("torch."),
        "threads": threads,
    }
    process = subprocess.run(
        [sys.executable, "-m", __name__, json.dumps(request)],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        env=environment_of_its_own(),
        check=False,
    )
    if process.returncode == -9 or "can't allocate memory" in process.stderr:
        raise OutOfMemoryError(too_large(rows, length))
    if process.returncode != 0:
        last = (process.stderr.strip().splitlines() or [f"exit code {process.returncode}"])[-1]
        return None, f"Peak memory was not measured: the process for it failed with {last}"
    return PeakMemory(**json.loads(process.stdout.splitlines()[-1])), None


def _main(request: dict) -> None:
    torch.set_num_threads(request["threads"])
    libraries = resident("VmRSS")
    model = load(request["folder"], with_processor=False).model.to(getattr(torch, request["dtype"]))
    with contextlib.suppress(OSError):  # if not allowed, the peak includes loading
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    with torch.no_grad():
        model(**random_inputs(model, request["rows"], request["length"] or 1))
    print(json.dumps({"peak_bytes": resident("VmHWM"), "libraries_bytes": libraries}))


if __name__ == "__main__":
    _main(json.loads(sys.argv[1]))
