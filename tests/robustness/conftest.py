"""What tests of robustness share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from folders import Undisturbed, folder_for, longer_line, make_bases, weights
from forks import Forks, Job, Outcome, forks


@pytest.fixture(scope="session")
def bases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The undamaged checkpoints."""
    return make_bases(tmp_path_factory.mktemp("bases"))


@pytest.fixture(scope="session")
def running() -> Iterator[Forks]:
    """A process that runs commands in forks."""
    with forks() as process:
        yield process


@pytest.fixture(scope="session")
def undisturbed(bases: Path, running: Forks, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Undisturbed]:
    """The weights that come of a command of `LONGER` that nobody disturbed, and the seconds that it took."""
    known: dict[str, Undisturbed] = {}

    def of(name: str) -> Undisturbed:
        if name not in known:
            outcomes: list[Outcome] = []
            for _ in range(2):  # the second time, all is imported and in the system's caches
                folder = folder_for(name, bases, tmp_path_factory.mktemp("undisturbed"))
                outcomes.append(running.run(Job(longer_line(name), str(folder))))
                assert outcomes[-1].code == 0, outcomes[-1].stderr
            known[name] = weights(folder / "out"), min(outcome.seconds for outcome in outcomes)
        return known[name]

    return of
