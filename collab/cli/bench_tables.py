"""Speed, memory and size as tables in the terminal, in 80 columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from ..steps.step import display_names
from .tables import cache_sentence, caption, plain_table

if TYPE_CHECKING:
    from ..evaluation.bench_report import BenchReport


def show_bench(report: BenchReport) -> None:
    """Speed, memory and size, of a model or of two."""
    console = Console()
    labels = display_names([model.name for model in report.models])
    console.print(_speeds(report, labels))
    if len(report.models) == 2:
        console.print(_ratios(report, *labels))
    console.print(_sizes(report, labels))
    for label, model in zip(labels, report.models, strict=True):
        if model.cache is not None:
            console.print(f"{label}: {cache_sentence(model.cache)}", highlight=False)
    for note in report.notes:
        console.print(note, markup=False, highlight=False)


def _speeds(report: BenchReport, labels: list[str]) -> Table:
    """The time of a call of each model."""
    text = report.unit == "tokens"
    compiled = ", torch.compile" if report.compiled else ""
    dtype = "" if any(model.precision for model in report.models) else f"{report.dtype}, "
    table = plain_table(
        f"{report.device}, {dtype}{report.threads} threads{compiled}",
        ["", "batch", *(["length"] * text), "ms", "quartiles", f"{report.unit}/s"],
        caption=caption(
            *(
                f"{label}: {'' if label == model.name else f'{model.name}, '}a {model.class_name}"
                f"{f', {model.attention} in {model.precision}' if model.precision else ''};"
                for label, model in zip(labels, report.models, strict=True)
            ),
            f"ms: of a call, median and quartiles of {report.rounds} rounds.",
        ),
    )
    for setting in report.settings:
        where = [str(setting.batch_size), *([str(setting.length)] * text)]
        for label, seconds, rate in zip(labels, setting.seconds, setting.per_second, strict=True):
            spread = f"{_milliseconds(seconds.low)} {_milliseconds(seconds.high)}"
            table.add_row(label, *where, _milliseconds(seconds.median), spread, f"{rate:,.0f}")
    return table


def _ratios(report: BenchReport, first: str, second: str) -> Table:
    """How many times as fast the first model is as the second."""
    text = report.unit == "tokens"
    table = plain_table(
        f"How many times as fast {first} is as {second}",
        ["batch", *(["length"] * text), "ratio", "quartiles"],
        caption=f"ratio: of the medians, with the quartiles of single rounds; above 1 {first} is faster.",
    )
    for setting in report.settings:
        if setting.ratio is not None:
            where = [str(setting.batch_size), *([str(setting.length)] * text)]
            table.add_row(*where, f"{setting.ratio.median:.2f}", f"{setting.ratio.low:.2f} {setting.ratio.high:.2f}")
    return table


def _sizes(report: BenchReport, labels: list[str]) -> Table:
    """Parameters, files and memory."""
    rows, length = report.memory_at
    measured = any(model.memory is not None for model in report.models)
    resident = any(model.memory is not None and model.memory.libraries_bytes is not None for model in report.models)
    at = f"{rows} rows of {length} tokens" if length is not None else f"{rows} {report.unit}"
    table = plain_table(
        "Size",
        ["", "parameters", "file", *["peak memory"] * measured, *["libraries"] * resident],
        caption=caption(
            "file: the weights on disk.",
            f"peak memory: at {at}{', of a process that does nothing else' if resident else ''}." * measured,
            "libraries: what of it was there before the model was loaded." * resident,
        ),
    )
    for label, model in zip(labels, report.models, strict=True):
        memory = model.memory
        row = [label, f"{model.parameters:,}", _megabytes(model.file_bytes)]
        if measured:
            row.append(_megabytes(None if memory is None else memory.peak_bytes))
        if resident:
            row.append(_megabytes(None if memory is None else memory.libraries_bytes))
        table.add_row(*row)
    return table


def _milliseconds(seconds: float) -> str:
    """Three digits, without an exponent."""
    number = seconds * 1e3
    return f"{number:.{0 if number >= 100 else 1 if number >= 10 else 2}f}"


def _megabytes(count: int | None) -> str:
    return "" if count is None else f"{count / 1e6:,.1f} MB"
