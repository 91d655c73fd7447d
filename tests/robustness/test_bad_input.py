"""Bad input: one message that says what to do, exit code 1 or 2, nothing written, and the input as it was.

A few of the generated cases of every kind are always run; the others, thousands, are exhaustive.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from bad_cases import CASES, LINES, Case
from folders import SECRET, furnish, snapshot
from forks import CRASHED, Forks, Job, Outcome
from tiny import exhaustive_unless, often

LIMIT = 120.0


def shortcoming(case: Case, outcome: Outcome, before: dict[str, bytes], after: dict[str, bytes]) -> str | None:
    """How a case falls short of what has to hold; None if it does not."""
    new = {name for name in after if name not in before}
    if any(Path(name).name == "attacked" for name in new):
        return "code ran"
    if any(SECRET.encode() in after[name] for name in new):
        return "a file from outside was copied"
    if any(after.get(name) != content for name, content in before.items() if not _may_change(case, outcome, name)):
        return "the input changed"
    if outcome.code < 0:
        return "hung" if outcome.seconds >= LIMIT else f"killed by signal {-outcome.code}"
    if outcome.code == CRASHED or "Traceback" in outcome.stderr:
        return "a traceback"
    if outcome.code == 0:
        if case.refused:
            return "accepted"
        if any(".partial" in name for name in new):
            return "something was left behind"
        return None
    if outcome.code not in (1, 2):
        return f"exit code {outcome.code}"
    if not any(line.startswith("Error: ") for line in outcome.stderr.splitlines()):
        return "no message"
    message = outcome.stderr[outcome.stderr.index("Error: ") :]
    if len(message.splitlines()) >= 10 or len(message) > 2000:
        return "a long message"
    return f"left {sorted(new)[0]}" if new else None


def _may_change(case: Case, outcome: Outcome, name: str) -> bool:
    """`collab evaluate --record` adds to report and card."""
    recorded = "--record" in case.line and outcome.code == 0
    return recorded and name in ("model/collab_report.json", "model/README.md")


def run(case: Case, bases: Path, folder: Path, running: Forks) -> tuple[Outcome, str | None]:
    """Runs a case in a new folder; returns the outcome and how it falls short."""
    case.prepare(furnish(folder, bases / case.base))
    before = snapshot(folder)
    outcome = running.run(Job(list(case.line), str(folder), seconds=LIMIT))
    return outcome, shortcoming(case, outcome, before, snapshot(folder))


@pytest.mark.parametrize("command", often(LINES, {*LINES} - {"export"}))  # a graph takes long
def test_undamaged_input_is_accepted(command: str, bases: Path, tmp_path: Path, running: Forks) -> None:
    """Or else what follows would show nothing."""
    case = next(case for case in CASES if case.command == command and case.kind == "trust")
    harmless = Case(command, "", "", case.base, case.line, lambda folder: None, refused=False)
    outcome, short = run(harmless, bases, tmp_path, running)
    assert outcome.code == 0, outcome.stderr
    assert short is None


@pytest.mark.parametrize("case", [pytest.param(case, id=case.id, marks=exhaustive_unless(case.fast)) for case in CASES])
def test_bad_input_is_refused_with_a_message(
    case: Case,
    bases: Path,
    tmp_path: Path,
    running: Forks,
    record_property: Callable[[str, object], None],
) -> None:
    outcome, short = run(case, bases, tmp_path, running)
    record_property("message", outcome.stderr.replace(str(tmp_path), "FOLDER") if outcome.code else "")
    assert short is None, f"{short}\n{outcome.stdout}\n{outcome.stderr}"
