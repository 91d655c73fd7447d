"""Signals: a command that is killed or interrupted leaves no output or a whole one, and run again it ends the same."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from folders import LONGER, Undisturbed, check_nothing_else, folder_for, longer_line, snapshot, weights
from forks import Forks, Job
from processes import command
from tiny import often
from torch.testing import assert_close

import collab

CODE = Path(collab.__file__).parents[1]
MESSAGE = "Error: Interrupted. Nothing was written.\n"
_DRAWN = random.Random(0)
MOMENTS = {
    number: [(place + _DRAWN.random()) / count for place in range(count)]
    for number, count in ((signal.SIGKILL, 20), (signal.SIGINT, 6), (signal.SIGTERM, 6))
}
"""Parts of a run after which a signal is sent, spread over all of it."""

MOMENTS_OF_THE_START = [0.002 * number for number in range(150)] + [0.05 * number for number in range(6, 41)]
"""Seconds after the start of Python."""


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("number", "part"),
    [pytest.param(number, part, id=f"{number.name}-{part:.3f}") for number, parts in MOMENTS.items() for part in parts],
)
@pytest.mark.parametrize("name", LONGER)
def test_a_signal_at_any_moment(
    name: str,
    number: signal.Signals,
    part: float,
    bases: Path,
    tmp_path: Path,
    running: Forks,
    undisturbed: Callable[[str], Undisturbed],
) -> None:
    expected, seconds = undisturbed(name)
    folder = folder_for(name, bases, tmp_path)
    before = snapshot(folder)
    outcome = running.run(Job(longer_line(name), str(folder), signal=number, after=part * seconds))
    assert "Traceback" not in outcome.stderr
    killed = (".out.", ".collab.") if number == signal.SIGKILL else ()  # which nobody was left to delete
    check_nothing_else(before, snapshot(folder), *killed)
    if not (folder / "out").exists():
        again = running.run(Job(longer_line(name), str(folder)))
        assert again.code == 0, again.stderr
    assert_close(weights(folder / "out"), expected, rtol=0, atol=1e-6)


def start(line: list[str]) -> subprocess.Popen[str]:
    """Starts a command line that SIGINT interrupts: a background job's children ignore it unless told otherwise."""
    return subprocess.Popen(
        line,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(CODE)},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("seconds", [0.15, 0.3])
def test_signals_before_anything_is_imported(number: signal.Signals, seconds: float, tmp_path: Path) -> None:
    """From the first moment on that is collab's; before it, Python itself starts."""
    process = start(command("convert", str(tmp_path), str(tmp_path / "out"), "--rank", "8"))
    status, ours = Path(f"/proc/{process.pid}/status"), 1 << (signal.SIGTERM - 1)
    if not status.is_file():
        process.kill()
        pytest.skip("no /proc")
    while not int(re.findall(r"SigCgt:\s*(\w+)", status.read_text())[0], 16) & ours:
        time.sleep(0.002)  # its handlers are not there yet
    time.sleep(seconds - 0.15)
    process.send_signal(number)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 1
    assert stderr.endswith(MESSAGE)
    assert "Traceback" not in stderr


@pytest.mark.parametrize("seconds", often([0.4, 1.0, 2.0], {"1.0"}))
def test_ctrl_c_while_libraries_are_imported(demo_folder: Path, tmp_path: Path, seconds: float) -> None:
    process = start(command("convert", demo_folder, tmp_path / "out", "--rank", "8"))
    assert process.stderr is not None
    try:
        assert process.stderr.readline().startswith("Loading ")
        time.sleep(seconds)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 1
    assert stderr.endswith(MESSAGE)
    assert "Traceback" not in stderr
    assert list(tmp_path.iterdir()) == []


def test_little_is_imported_before_there_is_a_handler() -> None:
    """Until collab/__main__.py runs, Ctrl-C shows Python's traceback."""
    code = "import sys; before = set(sys.modules); import collab; print(*sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    imported = done.stdout.split()
    own = [name for name in imported if name.partition(".")[0] == "collab"]
    assert own == ["collab", "collab.models", "collab.models.registration"]
    assert {"importlib.resources", "pathlib", "tempfile", "typing"}.isdisjoint(imported)
    assert len(imported) < 40, imported


@pytest.mark.exhaustive
@pytest.mark.parametrize("after", MOMENTS_OF_THE_START)
@pytest.mark.parametrize("line", [command(), [str(Path(sys.executable).with_name("collab"))]], ids=["module", "script"])
def test_ctrl_c_while_python_starts(
    line: list[str], after: float, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """No word as long as Python has no handler, then its traceback, and from collab's first line on one message."""
    process = start([*line, "convert", str(tmp_path), str(tmp_path / "out"), "--rank", "8"])
    time.sleep(after)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    frames = {Path(name).name for name in stderr.split('"') if name.startswith(str(CODE / "collab"))}
    shown = "one message"
    if "Traceback" in stderr:
        shown = "traceback of `import collab`" if frames else "traceback of Python's own start"
        assert "__main__.py" not in frames, stderr
    elif process.returncode == -signal.SIGINT:
        shown = "no word"
        assert not stderr
    else:
        assert process.returncode == 1
        assert stderr.endswith(MESSAGE)
    record_property("shown", shown)
