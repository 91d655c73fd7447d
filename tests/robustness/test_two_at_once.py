"""Two commands on one output, or an output that appears meanwhile: one writes it, the other says why it did not."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from folders import LONGER, Undisturbed, check_nothing_else, folder_for, longer_line, snapshot, weights
from forks import Forks, Job, forks
from torch.testing import assert_close

from collab.errors import OutputError, TrainingError
from collab.io.staging import staged
from collab.training.work import exclusive_lock


@pytest.fixture(scope="module")
def also_running() -> Iterator[Forks]:
    with forks() as process:
        yield process


@pytest.mark.exhaustive
@pytest.mark.parametrize("part", [0.0, 0.25, 0.5])
@pytest.mark.parametrize("name", LONGER)
def test_the_same_command_twice(
    name: str,
    part: float,
    bases: Path,
    tmp_path: Path,
    running: Forks,
    also_running: Forks,
    undisturbed: Callable[[str], Undisturbed],
) -> None:
    expected, seconds = undisturbed(name)
    folder = folder_for(name, bases, tmp_path)
    before = snapshot(folder)
    running.start(Job(longer_line(name), str(folder)))
    time.sleep(part * seconds)
    outcomes = [also_running.run(Job(longer_line(name), str(folder))), running.outcome()]
    assert sorted(outcome.code for outcome in outcomes) == [0, 1]
    assert not any("Traceback" in outcome.stderr for outcome in outcomes)
    check_nothing_else(before, snapshot(folder))
    assert_close(weights(folder / "out"), expected, rtol=0, atol=1e-6)


def test_a_work_folder_is_for_one_command_at_a_time(tmp_path: Path) -> None:
    work = tmp_path / "out.training"
    with exclusive_lock(work), pytest.raises(TrainingError, match="Another command is working"), exclusive_lock(work):
        pass
    assert not work.exists()
    with exclusive_lock(work):
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


@pytest.mark.parametrize("number", [0, 1])
def test_an_interrupt_while_folders_are_moved_loses_neither(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may come after a folder was moved, and before the program goes on."""
    output = tmp_path / "out"
    _write_while(output, lambda: None)
    (output / "file").write_text("old")
    rename, moved = Path.rename, []

    def interrupted(self: Path, target: Path) -> Path:
        there = rename(self, target)
        moved.append(there)
        if len(moved) == number + 1:
            raise KeyboardInterrupt
        return there

    monkeypatch.setattr(Path, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt):
        _write_while(output, lambda: None, overwrite=True)
    assert (output / "file").read_text() == ("old", "ours")[number]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def _write_while(output: Path, meanwhile: Callable[[], object], overwrite: bool = False) -> None:
    with staged(output, overwrite) as folder:
        (folder / "file").write_text("ours")
        meanwhile()
