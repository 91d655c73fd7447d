"""Runs many command lines, each in a fork of one process that has imported everything once.

As a program, it reads one job a line from standard input and answers each with a line on standard output, both JSON.
The process that forks has no threads of its own running, which a test's process has.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

CRASHED = 99
"""Exit code of a fork that ended by an exception."""


@dataclass(frozen=True)
class Job:
    """A command line to run.

    Attributes:
        arguments: those of `collab`.
        folder: where to run it.
        limits: of resources, by the number that `resource` gives them.
        seconds: time after which it is killed.
        signal: number of a signal to send it; 0 for none.
        after: seconds after which to send that.
    """

    arguments: list[str]
    folder: str = "."
    limits: dict[int, int] = field(default_factory=dict)
    seconds: float = 120.0
    signal: int = 0
    after: float = 0.0


@dataclass(frozen=True)
class Outcome:
    """What became of it: exit code (negative for a signal), text, and wall-clock time."""

    code: int
    stdout: str
    stderr: str
    seconds: float


class Forks:
    """A process that runs jobs in forks, one after the other."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"},
        )

    def run(self, job: Job) -> Outcome:
        """Runs a job."""
        self.start(job)
        return self.outcome()

    def start(self, job: Job) -> None:
        """Starts a job, whose outcome has to be asked for before the next one starts."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(vars(job)) + "\n")
        self._process.stdin.flush()

    def outcome(self) -> Outcome:
        """What became of the job that was started."""
        assert self._process.stdout is not None
        return Outcome(**json.loads(self._process.stdout.readline()))

    def close(self) -> None:
        """Ends the process."""
        self._process.communicate()


@contextlib.contextmanager
def forks() -> Iterator[Forks]:
    """A process that runs jobs, for as long as it is needed."""
    running = Forks()
    try:
        yield running
    finally:
        running.close()


_TRAINING = ("collab.training.heal", "collab.training.finetune", "accelerate", "peft", "transformers.trainer")
_MODULES = {
    "compress": ("collab.compression.compress", *_TRAINING),
    "heal": _TRAINING,
    "finetune": _TRAINING,
    "export": (
        "collab.checkpoints.export",
        "onnx",
        "onnxruntime",
        "onnxscript",
        "torch.fx.experimental.symbolic_shapes",
    ),
}
"""What a command imports while it works, besides what all do."""


def _import_for_all() -> None:
    """What commands import by themselves, so that no fork has to."""
    import datasets  # noqa: F401
    import scipy.optimize  # noqa: F401
    import sklearn.metrics  # noqa: F401
    import torch

    from collab.cli.libraries import import_libraries

    import_libraries(0)
    torch.set_num_threads(1)
    for module in ("tables", "head_tables", "bench_tables"):
        importlib.import_module(f"collab.cli.{module}")


@functools.cache
def _import_for(command: str) -> None:
    """What one of them imports, once there is a job for it."""
    for module in (f"collab.checkpoints.{command}", *_MODULES.get(command, ())):
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(module)


def _in_fork(job: dict[str, Any], stdout: int, stderr: int) -> None:
    """Runs a job and ends the process."""
    code = CRASHED
    try:
        os.dup2(stdout, 1)
        os.dup2(stderr, 2)
        os.chdir(job["folder"])
        signal.signal(signal.SIGINT, signal.default_int_handler)  # which background jobs inherit as ignored
        for limit, value in job["limits"].items():
            resource.setrlimit(int(limit), (value, value))
        from collab.cli import main

        main(job["arguments"], prog_name="collab")
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _wait(process: int, job: dict[str, Any]) -> int:
    """The exit code of a fork, which gets its signal in time, and is killed when its time is over."""
    waited, pause, sent = 0.0, 0.001, not job["signal"]
    while True:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if not sent and waited >= job["after"]:
            os.kill(process, job["signal"])
            sent = True
        if waited > job["seconds"]:
            os.kill(process, signal.SIGKILL)
        time.sleep(pause)
        waited += pause  # not by the clock, which goes on while somebody has stopped all of these processes
        pause = min(0.02, pause * 1.5)


def _serve() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # nothing but answers goes there
    _import_for_all()
    for line in sys.stdin:
        job = json.loads(line)
        _import_for(job["arguments"][0])
        start = time.perf_counter()
        with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
            process = os.fork()
            if not process:
                _in_fork(job, stdout.fileno(), stderr.fileno())
            code = _wait(process, job)
            texts = []
            for file in (stdout, stderr):
                file.seek(0)
                texts.append(file.read().decode(errors="replace"))
        answers.write(
            json.dumps({"code": code, "stdout": texts[0], "stderr": texts[1], "seconds": time.perf_counter() - start})
            + "\n"
        )
        answers.flush()


if __name__ == "__main__":
    _serve()
