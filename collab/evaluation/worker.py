"""Models that run in processes of their own, to be measured in turn while the threads of the others sleep.

Runtimes keep threads and memory that disturb each other in one process. So this module runs as a program, ``python -m
collab.evaluation.worker``, which loads one model and answers requests, a line of JSON each.
"""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

from ..errors import CheckpointError, OutOfMemoryError, is_short_of_memory
from ..graphs.served import find_graph, load_graph, session_of
from ..io.checkpoint import Checkpoint
from ..io.load import load
from ..models.inputs import random_inputs
from ..processes import environment_of_its_own
from .bench_report import PeakMemory
from .timing import TimedElsewhere

_STATUS = Path("/proc/self/status")


class Worker(TimedElsewhere):
    """A model in a process of its own, which reads it while others start; `wait` for it before anything else.

    Args:
        model: folder of the model, or of a graph.
        dtype: dtype of the weights and arithmetic of a PyTorch model.
    """

    def __init__(self, model: str, dtype: torch.dtype = torch.float32) -> None:
        self._name = model
        self._said = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 - a pipe would fill
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            env=environment_of_its_own(),
            text=True,
        )
        self._send({"load": model, "dtype": str(dtype).removeprefix("torch."), "threads": torch.get_num_threads()})

    def wait(self) -> None:
        """Waits until the model has been read.

        Raises:
            CheckpointError: if it cannot be.
            OutOfMemoryError: if there is too little memory for it.
        """
        self._receive()

    def prepare(self, sizes: Sequence[tuple[int, int | None]], vocabulary: int | None = None, seed: int = 0) -> None:
        """Makes random inputs of some batch sizes and lengths, all of which every later call of `seconds` runs on."""
        self._ask({"sizes": sizes, "vocabulary": vocabulary, "seed": seed})

    def seconds(self, batch: Mapping[str, Tensor]) -> float:
        """Seconds of one round over the inputs that were prepared."""
        return self._ask({"run": True})["seconds"]

    def memory(self) -> PeakMemory | None:
        """The largest resident memory so far; None where the system does not tell."""
        answer = self._ask({"memory": True})
        return PeakMemory(**answer) if answer else None

    def _ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        self._send(request)
        return self._receive()

    def _send(self, request: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()

    def _receive(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        answer = self._process.stdout.readline()
        if not answer:
            if self._process.wait() == -signal.SIGKILL:
                raise OutOfMemoryError(f"The process that runs {self._name} was killed, as for lack of memory.")
            self._said.seek(0)
            lines = self._said.read().strip().splitlines()
            raise CheckpointError(f"The process that runs {self._name} ended: {(lines or ['no message'])[-1]}")
        result = json.loads(answer)
        if "error" in result:
            kind = OutOfMemoryError if result["short"] else CheckpointError
            raise kind(result["error"])
        return result

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._said):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()


@contextlib.contextmanager
def workers(models: Sequence[str], dtype: torch.dtype) -> Iterator[list[Worker]]:
    """A process for each model, ended with the context.

    Raises:
        CheckpointError: if a model cannot be read.
    """
    with contextlib.ExitStack() as stack:
        processes = [stack.enter_context(Worker(model, dtype)) for model in models]
        for process in processes:
            process.wait()
        yield processes


def load_any(name: str) -> Checkpoint:
    """A model in a folder or on the Hub, or a graph that `collab export` wrote, without its tokenizer."""
    found = find_graph(name)
    return load(name, with_processor=False) if found is None else load_graph(*found)


def _resident(field: str) -> int:
    """A field of this process's status, in bytes: VmRSS (current) or VmHWM (peak)."""
    line = next(line for line in _STATUS.read_text().splitlines() if line.startswith(f"{field}:"))
    return int(line.split()[1]) * 1024


def _answers(requests: Iterator[str]) -> Iterator[dict[str, Any]]:
    """The answers to requests, one by one."""
    libraries = _resident("VmRSS") if _STATUS.is_file() else 0
    model: Any = None
    batches: list[dict[str, Tensor]] = []
    for line in requests:
        request = json.loads(line)
        if "load" in request:
            torch.set_num_threads(request["threads"])
            model = load_any(request["load"]).model
            if session_of(model) is None:
                model.to(getattr(torch, request["dtype"]))
            with contextlib.suppress(OSError):  # if not allowed, the peak includes loading
                Path("/proc/self/clear_refs").write_text("5")  # resets the peak
            yield {}
        elif "sizes" in request:
            more = {"vocabulary": request["vocabulary"], "seed": request["seed"]}
            batches = [random_inputs(model, rows, length or 1, **more) for rows, length in request["sizes"]]
            yield {}
        elif "run" in request:
            with torch.no_grad():
                start = time.perf_counter()
                for batch in batches:
                    model(**batch)
                yield {"seconds": time.perf_counter() - start}
        else:
            known = _STATUS.is_file()
            yield {"peak_bytes": _resident("VmHWM"), "libraries_bytes": libraries} if known else {}


def _main() -> None:
    answers = sys.stdout
    sys.stdout = sys.stderr  # libraries print
    try:
        for answer in _answers(iter(sys.stdin)):
            print(json.dumps(answer), file=answers, flush=True)
    except Exception as error:  # the process that asked reports it
        short = isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and is_short_of_memory(error))
        print(json.dumps({"error": str(error), "short": short}), file=answers, flush=True)


if __name__ == "__main__":
    _main()
