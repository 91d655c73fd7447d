"""The history of a model after its conversion: each step is appended to its report and its card."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCard, ModelCardData
from huggingface_hub.repocard_data import model_index_to_eval_results

from ..errors import CheckpointError
from .card import CARD_FILE, parse_card
from .read import read_object
from .staging import whole_file

REPORT_FILE = "collab_report.json"

_NUMBER = int | float
_STEPS = [{"step": str}]
# What is read of a report again; a list's entries are all of one form.
_FORM: dict[str, Any] = {
    "source": str | None,
    "revision": str | None,
    "command": str | None,
    "settings": dict,
    "parameters": {"query_key": {"ratio": _NUMBER}},
    "layers": [{"form": str, "error": _NUMBER, "score_error": _NUMBER | None}],
    "history": _STEPS,
    "original_history": _STEPS,
}


@dataclass(frozen=True)
class Metric:
    """A metric for the card's model-index.

    Attributes:
        task: task type on the Hub, such as ``text-classification``.
        dataset: data set that it was measured on.
        metric: name of the metric.
        value: its value.
    """

    task: str
    dataset: str
    metric: str
    value: float


@dataclass(frozen=True)
class Step:
    """One step of a model's history, such as healing.

    Attributes:
        title: heading of its section in the card.
        text: the section, in Markdown.
        record: settings and results as JSON values; ``step`` names its kind.
        measured: metrics for the model-index.
    """

    title: str
    text: str
    record: dict[str, Any]
    measured: tuple[Metric, ...] = field(default=())


def read_report(folder: Path) -> dict[str, Any]:
    """The report in a model's folder; empty if there is none.

    Raises:
        CheckpointError: if it is not valid JSON, or an entry is of another type than collab writes.
    """
    path = folder / REPORT_FILE
    if not path.is_file():
        return {}
    report = read_object(path)
    for name, form in _FORM.items():
        misfit = _misfit(report[name], form, name) if name in report else None
        if misfit is not None:
            raise CheckpointError(
                f"{misfit} in {path} is not what collab writes there. Restore the file, or delete it if you can do "
                "without the model's history."
            )
    return report


def _misfit(value: Any, form: Any, where: str) -> str | None:
    """Where a value of a report is not of its form; None if it is."""
    if not isinstance(value, type(form) if isinstance(form, dict | list) else form):
        return where
    parts: Iterable[str | None] = ()
    if isinstance(form, dict):
        parts = (
            _misfit(value[key], inner, f"{where}.{key}") if key in value else f"{where} without {key}"
            for key, inner in form.items()
        )
    elif isinstance(form, list):
        parts = (_misfit(entry, form[0], f"{where}[{number}]") for number, entry in enumerate(value))
    return next(filter(None, parts), None)


def append(folder: Path, step: Step, *, name: str) -> None:
    """Adds a step to a folder's report and card, creating them if needed.

    Args:
        folder: folder of the model.
        step: the step to add.
        name: name of the model, for the model-index and a new card.
    """
    report = read_report(folder)
    report["history"] = [*report.get("history", []), step.record]
    _write(folder / REPORT_FILE, json.dumps(report, indent=2) + "\n")
    append_to_card(folder, step, name=name)


def append_to_card(folder: Path, step: Step, *, name: str) -> None:
    """Adds a step to a folder's card only. Arguments as in `append`."""
    _write(folder / CARD_FILE, _card(folder, step, name))


def table(headings: list[str], rows: list[list[str]]) -> str:
    """A Markdown table, its first column text and the others numbers."""
    lines = [f"| {' | '.join(headings)} |", "|---|" + "---:|" * (len(headings) - 1)]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def short(value: float) -> str:
    """A number with four decimals; below a hundredth with two digits."""
    return f"{value:.4f}" if value == 0 or abs(value) >= 0.01 else f"{value:.2g}"


def forget_results(folder: Path) -> None:
    """Removes the model-index from a card, because its metrics belong to weights that have changed since."""
    path = folder / CARD_FILE
    if not path.is_file():
        return
    data, text = parse_card(path.read_text(encoding="utf-8", errors="replace"))
    if data.get("eval_results"):
        data.eval_results = None
        _write(path, f"---\n{data.to_yaml()}\n---\n\n{text}")


def _card(folder: Path, step: Step, name: str) -> str:
    path = folder / CARD_FILE
    data: Any = ModelCardData()
    text = f"# {name}\n"
    if path.is_file():
        data, text = parse_card(path.read_text(encoding="utf-8", errors="replace"))
    if step.measured:
        results = list(data.eval_results or [])
        results += [
            EvalResult(
                task_type=metric.task,
                dataset_type=metric.dataset,
                dataset_name=metric.dataset,
                metric_type=metric.metric,
                metric_value=round(metric.value, 6),
            )
            for metric in step.measured
        ]
        data.eval_results = _latest(results)
        data.model_name = data.model_name or name
    header = f"---\n{data.to_yaml()}\n---\n\n" if data.to_dict() else ""
    return f"{header}{text.rstrip()}\n\n## {step.title}\n\n{step.text}\n"


def _latest(results: list[EvalResult]) -> list[EvalResult]:
    """The last result for each task, data set and metric."""
    return list({(result.task_type, result.dataset_name, result.metric_type): result for result in results}.values())


def results_of(folder: Path) -> list[EvalResult]:
    """The model-index in a folder's card."""
    index = ModelCard.load(folder / CARD_FILE).data.to_dict().get("model-index") or []
    return model_index_to_eval_results(index)[1] if index else []


def _write(path: Path, text: str) -> None:
    with whole_file(path) as partial:
        partial.write_text(text, encoding="utf-8")
