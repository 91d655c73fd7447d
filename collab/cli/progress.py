"""How far a command is: a bar for each phase, and how long each took."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import TaskID

_STARTING = "starting"


class Phases:
    """How long each phase of a command took."""

    def __init__(self) -> None:
        self._start = self._since = time.perf_counter()
        self._phase = _STARTING
        self._completed: float | None = None
        self._seconds = {_STARTING: 0.0}

    def reach(self, phase: str, done: int, total: int | None) -> bool:
        """Notes that work has come to some place in a phase; returns whether the phase is another than before."""
        now = time.perf_counter()
        new = phase != self._phase
        if new:
            # A phase that is first heard of when a part of it is done began when the one before it was complete.
            end = self._completed if self._completed is not None and done else now
            self._seconds[self._phase] += end - self._since
            self._phase, self._since = phase, end
            self._seconds.setdefault(phase, 0.0)
        self._completed = now if done == total else None
        return new

    def summary(self) -> str:
        """The time of the whole command and of each phase."""
        now = time.perf_counter()
        self._seconds[self._phase] += now - self._since
        self._since = now
        parts = ", ".join(f"{phase} {seconds:.1f} s" for phase, seconds in self._seconds.items())
        return f"Took {now - self._start:.1f} s: {parts}"


class Bars:
    """A bar for each phase on standard error. They are gone when the result is shown."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TimeElapsedColumn

        columns = ("{task.description}", BarColumn(), "{task.fields[count]}", TimeElapsedColumn())
        self._bars = Progress(*columns, console=Console(stderr=True), transient=True)
        self._bars.start()
        self._tasks: dict[str, TaskID] = {}
        self._phase = ""
        self.show(_STARTING, _STARTING, 0, None)

    def show(self, phase: str, what: str, done: int, total: int | None) -> None:
        """Moves the bar of a phase."""
        if phase != self._phase:
            if self._phase:
                self._bars.update(self._tasks[self._phase], total=1, completed=1)
            if phase in self._tasks:
                self._bars.reset(self._tasks[phase])
            else:
                self._tasks[phase] = self._bars.add_task(what, total=None, count="")
            self._phase = phase
        count = "" if total is None else f"{done}/{total}"
        self._bars.update(self._tasks[phase], description=what, completed=done, total=total, count=count)

    def stop(self) -> None:
        """Clears them away."""
        self._bars.stop()
