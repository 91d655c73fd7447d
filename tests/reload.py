"""Loading exports in a separate process, where collab cannot be imported."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import apart
import torch
from tiny import largest_difference, of_seen
from transformers import AutoModel

T = TypeVar("T")

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["transformers.modeling_utils", "transformers.models.auto.modeling_auto"])


def without_collab(task: Callable[..., T], *arguments: Any, cache: Path) -> T:
    """The result of a function of `apart` in a process that cannot import collab.

    That is a fork of one that has imported transformers and nothing of collab, which takes seconds each time.
    """
    forks = ProcessPoolExecutor(1, _FORKS, initializer=apart.forget_collab, initargs=(cache,))
    with forks as process, _no_main_module():
        return process.submit(task, *arguments).result(timeout=600)


@contextlib.contextmanager
def _no_main_module() -> Iterator[None]:
    """Has new processes import no main module: that of a benchmark imports collab."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def run_without_collab(code: str, *arguments: str, cache: Path) -> subprocess.CompletedProcess[str]:
    """Runs Python code in a process of its own, with its own cache of remote code and no Hub."""
    environment = os.environ | {"HF_MODULES_CACHE": str(cache), "HF_HUB_OFFLINE": "1"}
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        env=environment,
        stdin=subprocess.DEVNULL,
        timeout=600,
        check=False,
    )


def error_without_trust(folder: Path, cache: Path) -> str:
    """What transformers says last where neither collab nor the code of an export may be used."""
    return errors_without_trust([folder], cache)[0]


def errors_without_trust(folders: list[Path], cache: Path) -> list[str]:
    """The same for several exports, which all have to be refused."""
    messages = without_collab(apart.errors, folders, cache=cache)
    assert len(messages) == len(folders), messages
    return messages


def outputs_without_collab(jobs: list[dict], folder: Path) -> list[dict[str, torch.Tensor]]:
    """What exports compute where collab is not there.

    Args:
        jobs: each with ``folder``, ``auto_class`` and ``inputs``, or ``sentences`` for SentenceTransformer; and perhaps
            ``trust_remote_code``, which is True otherwise.
        folder: for the files that go between the processes.
    """
    written = []
    for number, job in enumerate(jobs):
        entry = {key: str(value) if isinstance(value, Path) else value for key, value in job.items() if key != "inputs"}
        entry["outputs"] = str(folder / f"outputs-{number}.pt")
        if "inputs" in job:
            entry["inputs"] = str(folder / f"inputs-{number}.pt")
            torch.save(job["inputs"], entry["inputs"])
        written.append(entry)
    without_collab(apart.load, written, cache=folder / "modules")
    return [torch.load(entry["outputs"]) for entry in written]


def check_reloads(exports: dict[Path, dict[str, torch.Tensor]], folder: Path) -> None:
    """Checks that exports load as classes of collab, and in a process without it, with the same outputs.

    Args:
        exports: the inputs of every export.
        folder: as in `outputs_without_collab`.
    """
    jobs = [{"folder": export, "auto_class": "AutoModel", "inputs": inputs} for export, inputs in exports.items()]
    for (export, inputs), remote in zip(exports.items(), outputs_without_collab(jobs, folder), strict=True):
        model = AutoModel.from_pretrained(export)
        assert type(model).__module__.startswith("collab.")
        with torch.no_grad():
            expected = of_seen(model(**inputs), inputs)
        assert largest_difference(expected, of_seen(remote, inputs)) < 1e-5, export.name
