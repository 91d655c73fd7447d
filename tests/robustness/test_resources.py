"""Full and read-only disks, limits on files, too little memory: one message, and no output or a whole one."""

from __future__ import annotations

import resource
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from bad_cases import LINES, WRITING, line_of
from folders import LONGER, Undisturbed, check_nothing_else, folder_for, longer_line, snapshot, weights
from forks import Forks, Job
from processes import command
from small_disk import CannotMountError, change, small_disk
from tiny import often
from torch.testing import assert_close

WRITERS = often(WRITING, {"convert", "compress", "finetune"})


@pytest.mark.parametrize("limit", often([3_000, 20_000, 40_000], {"40000"}))
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


@pytest.mark.exhaustive
@pytest.mark.parametrize("kilobytes", range(4, 400, 20))
@pytest.mark.parametrize("name", LONGER)
def test_a_disk_that_becomes_full_at_any_write(
    name: str,
    kilobytes: int,
    bases: Path,
    tmp_path: Path,
    disk: Path,
    running: Forks,
    undisturbed: Callable[[str], Undisturbed],
    record_property: Callable[[str, object], None],
) -> None:
    """And made larger afterwards, it takes the same result, of the same command."""
    job = Job(longer_line(name, out="./disk/out"), str(folder_for(name, bases, tmp_path)))
    before = snapshot(tmp_path)
    change(disk, f"size={kilobytes}k")
    outcome = running.run(job)
    check_nothing_else(before, snapshot(tmp_path), "disk")
    assert {path.name for path in disk.iterdir()} <= {"out", "out.training"}
    if not (disk / "out").exists():
        _, error, message = outcome.stderr.partition("Error: ")
        record_property("message", message)
        assert outcome.code == 1
        assert error
        assert message.count("\n") < 10
        assert "Traceback" not in message
        change(disk, "size=256m")
        again = running.run(job)
        assert again.code == 0, again.stderr
    assert_close(weights(disk / "out"), undisturbed(name)[0], rtol=0, atol=1e-6)


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


def test_every_command_that_writes_is_disturbed() -> None:
    assert set(WRITING) < set(LINES)
    assert {name.split()[0] for name in LONGER} == set(WRITING)
