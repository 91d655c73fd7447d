"""The report in a model's folder."""

from __future__ import annotations

import json
from pathlib import Path

from ..steps.history import History
from ..steps.step import Step
from .card import CARD_FILE, with_sections
from .failures import writing
from .read import read_object
from .staging import atomic_write

REPORT_FILE = "collab_report.json"


def read_history(folder: Path) -> History:
    """The history of the model in a folder; empty if there is no report.

    Raises:
        CheckpointError: if the report is not valid JSON, or an entry is of another type than collab writes.
    """
    path = folder / REPORT_FILE
    return History.read(read_object(path), str(path)) if path.is_file() else History()


def write_history(folder: Path, history: History) -> None:
    """Writes the report into a folder."""
    with atomic_write(folder / REPORT_FILE) as partial:
        partial.write_text(json.dumps(history.report, indent=2) + "\n", encoding="utf-8")


def record(folder: Path, step: Step, *, name: str, command: str | None = None) -> History:
    """Adds a step to the report and the card of a finished folder.

    Args:
        folder: folder of the model.
        step: the step.
        name: name of the model, for the model-index and a new card.
        command: the command line.

    Raises:
        OutputError: if they cannot be written.
    """
    history = read_history(folder).then([step], command=command)
    card = folder / CARD_FILE
    text = with_sections(card.read_text(encoding="utf-8", errors="replace") if card.is_file() else "", [step], name)
    with writing(f"The record in {folder}", "Report and card are as they were."), atomic_write(card) as partial:
        partial.write_text(text, encoding="utf-8")
        write_history(folder, history)  # before the card is replaced, so that a full disk leaves both as they were
    return history
