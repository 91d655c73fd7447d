"""Running the command, in this process or in one of its own, and killing it midway."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from click.testing import CliRunner, Result


def run(*arguments: object) -> Result:
    """Runs `collab` in this process."""
    from collab.cli import main  # most tests do without

    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def command(*arguments: object) -> list[str]:
    """The command line of `collab` in this environment."""
    return [sys.executable, "-m", "collab", *map(str, arguments)]


def kill_midway(line: list[str], work: Path) -> Path:
    """Starts a training run, kills it with SIGKILL once it has a whole checkpoint, and returns that checkpoint."""
    process = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not list(work.glob("checkpoint-*/collab_checkpoint_is_whole")) and time.monotonic() < deadline:
        assert process.poll() is None, "it finished before it could be killed"
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    return next(work.glob("checkpoint-*/collab_checkpoint_is_whole")).parent
