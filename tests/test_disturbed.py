"""What disturbs a command from outside: signals, full disks, too little memory, another command on the same output."""

from __future__ import annotations

import re
import resource
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from bad_cases import LINES, WRITING, Case, base_of, line_of
from forks import Forks, Job, forks
from processes import command
from small_disk import CannotMountError, change, small_disk
from test_bad_input import make_bases, prepare, snapshot

from collab.errors import OutputError, TrainingError
from collab.io.staging import staged
from collab.training.work import alone_in


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_bases(tmp_path_factory.mktemp("bases"))


@pytest.fixture(scope="module")
def running() -> Iterator[Forks]:
    with forks() as process:
        yield process


def folder_for(name: str, bases: Path, folder: Path) -> Path:
    """A folder in which a command can run."""
    prepare(Case(name, "", "", base_of(name), (), lambda _: None, refused=False), bases, folder)
    return folder


WRITERS = [pytest.param(name, marks=[pytest.mark.slow] if name == "export" else []) for name in WRITING]


@pytest.mark.parametrize("limit", [3_000, 20_000, 40_000])
@pytest.mark.parametrize("name", WRITERS)
def test_a_limit_on_the_size_of_files(name: str, limit: int, bases: Path, tmp_path: Path, running: Forks) -> None:
    """Writing fails at the first file that is larger, as on a full disk."""
    folder = folder_for(name, bases, tmp_path)
    before = snapshot(folder)
    outcome = running.run(Job(list(line_of(name)), str(folder), {resource.RLIMIT_FSIZE: limit}))
    assert outcome.code == 1, outcome.stderr
    assert "could not be written" in outcome.stderr
    assert "Traceback" not in outcome.stderr
    left = {file for file in snapshot(folder) if file not in before}
    assert {Path(file).parts[0] for file in left} <= {"out.training"}
    if left:  # what it says
        assert "What was kept before is there" in outcome.stderr or "Nothing was left behind" in outcome.stderr


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk on which the weights fit, and not much more."""
    try:
        with small_disk(tmp_path / "disk", 88 * 1024) as folder:
            yield folder
    except CannotMountError as error:
        pytest.skip(f"mounting is not permitted: {error}")


@pytest.mark.parametrize("name", WRITERS)
def test_a_full_disk(name: str, bases: Path, tmp_path: Path, disk: Path, running: Forks) -> None:
    folder = folder_for(name, bases, tmp_path)
    before = snapshot(folder)
    outcome = running.run(Job(list(line_of(name, out="./disk/out")), str(folder)))
    assert outcome.code == 1, outcome.stderr
    assert "Traceback" not in outcome.stderr
    assert "could not be written" in outcome.stderr or "are free at" in outcome.stderr
    left = {file for file in snapshot(folder) if file not in before}
    assert {Path(file).parts[1] for file in left} <= {"out.training"}


@pytest.mark.parametrize("name", WRITERS)
def test_a_read_only_disk(name: str, bases: Path, tmp_path: Path, disk: Path, running: Forks) -> None:
    folder = folder_for(name, bases, tmp_path)
    before = snapshot(folder)
    change(disk, "ro")
    outcome = running.run(Job(list(line_of(name, out="./disk/out")), str(folder)))
    assert outcome.code == 1, outcome.stderr
    assert "cannot be created" in outcome.stderr
    assert "Read-only" in outcome.stderr
    assert "Traceback" not in outcome.stderr
    assert snapshot(folder) == before


@pytest.mark.parametrize("megabytes", [300, 700])
def test_too_little_memory(megabytes: int, tmp_path: Path) -> None:
    """Even for the libraries: a message, not a killed process."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (megabytes * 2**20, megabytes * 2**20))

    (tmp_path / "model").mkdir()
    line = command("convert", tmp_path / "model", tmp_path / "out", "--rank", "8")
    done = subprocess.run(line, capture_output=True, text=True, check=False, preexec_fn=limit)
    assert done.returncode == 1, done.stderr
    assert "too little memory" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("seconds", [0.15, 0.3])
def test_signals_before_anything_is_imported(number: signal.Signals, seconds: float, tmp_path: Path) -> None:
    """From the first moment on that is collab's; before it, Python itself starts."""
    line = command("convert", str(tmp_path), str(tmp_path / "out"), "--rank", "8")
    process = subprocess.Popen(
        line,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
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
    assert stderr.endswith("Error: Interrupted. Nothing was written.\n")
    assert "Traceback" not in stderr


def test_a_work_folder_is_for_one_command_at_a_time(tmp_path: Path) -> None:
    work = tmp_path / "out.training"
    with alone_in(work), pytest.raises(TrainingError, match="Another command is working"), alone_in(work):
        pass
    assert not work.exists()
    with alone_in(work):
        pass


def test_an_output_that_appears_meanwhile_is_left_as_it_is(tmp_path: Path) -> None:
    output = tmp_path / "out"
    with pytest.raises(OutputError, match="appeared or changed"):
        _write_while(output, lambda: (output.mkdir(), (output / "file").write_text("theirs")))
    assert (output / "file").read_text() == "theirs"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_not_even_overwrite_replaces_what_appears_meanwhile(tmp_path: Path) -> None:
    output = tmp_path / "out"
    with pytest.raises(OutputError, match="is not a folder"):
        _write_while(output, lambda: output.write_text("theirs"), overwrite=True)
    assert output.read_text() == "theirs"
    output.unlink()
    with pytest.raises(OutputError, match="did not write"):
        _write_while(output, lambda: (output.mkdir(), (output / "file").write_text("theirs")), overwrite=True)
    assert (output / "file").read_text() == "theirs"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def _write_while(output: Path, meanwhile: Callable[[], object], overwrite: bool = False) -> None:
    with staged(output, overwrite) as folder:
        (folder / "file").write_text("ours")
        meanwhile()


def test_every_command_that_writes_is_known() -> None:
    assert set(WRITING) < set(LINES)
