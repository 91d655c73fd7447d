"""The page of a model's history: widths, parameters, agreement, speed and errors, and the sections of its card."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt
from markupsafe import Markup

from ..io.report import ModelReport
from ..steps.agreement import named
from ..steps.conversion import Conversion
from ..steps.history import History
from ..steps.step import Json, display_names, short, shortened
from .pages import write_page


@dataclass(frozen=True)
class Bar:
    """A bar of a chart.

    Attributes:
        label: beside it.
        text: the value in words.
        share: its length, from 0 to 1; None for no bar.
    """

    label: str
    text: str
    share: float | None


@dataclass(frozen=True)
class Chart:
    """Bars with a title."""

    title: str
    bars: Sequence[Bar]


def write_report_page(file: Path, report: ModelReport) -> None:
    """Writes a page with the history of a model.

    Args:
        file: the .html file; replaced if it exists.
        report: what is known of the model.

    Raises:
        OutputError: if the file cannot be written.
    """
    history = report.history
    write_page(
        file,
        "report",
        title=display_names([report.name])[0],
        model_type=report.model_type,
        history=history,
        steps=list(_steps(history)),
        groups=[
            ("Parameters", "The original's, and what is left of them.", _parameters(history)),
            ("Widths by layer", "A whole bar is the original's width.", _widths(report)),
            ("Agreement", "With the original, or as the step says, on rows that were held out.", _agreements(history)),
            (
                "Errors by layer",
                "As the step left them, before later ones. The longest bar of a chart is its largest error.",
                _errors(history),
            ),
            ("Forms compared", "The candidates of the conversion: predicted error and parameters.", _forms(history)),
            ("Training", "Measured on held-out rows in the course of training.", _training(history)),
        ],
        speed=_speed(history),
        sections=_rendered(report.sections),
    )


def _steps(history: History) -> Iterator[tuple[str, str]]:
    """Every step in order, with its command where that is not the one of the step before."""
    steps = [
        (f"{entry['step']}, of the original", entry.get("command"))
        for entry in history.report.get("original_history", [])
    ]
    if history.layers:
        steps.append((Conversion.kind, history.command))
    steps += [(entry["step"], entry.get("command")) for entry in history.entries]
    previous = None
    for step, command in steps:
        yield step, "" if command is None or command == previous else command
        previous = command


def _parameters(history: History) -> list[Chart]:
    before: dict[str, int] = {}
    after: dict[str, int] = {}
    for part, count in history.report.get("parameters", {}).items():
        before[part], after[part] = count["before"], count["after"]
    for entry in history.entries:
        if entry["step"] == "prune":
            before = dict(entry["parameters"]["before"]) | before
            after |= entry["parameters"]["after"]
        elif entry["step"] == "expand":  # back to the original's shapes
            before = {"model": before.get("model", entry["parameters"]["before"])}
            after = {"model": entry["parameters"]["after"]}
    names = {"query_key": "queries and keys", "attention": "attention", "model": "the model"}
    charts = []
    for part, name in names.items():
        if part in before:
            was, now = before[part], after[part]
            left, most = f"{now:,} ({now / max(was, 1):.1%})", max(was, now, 1)
            charts.append(Chart(name, [Bar("before", f"{was:,}", was / most), Bar("now", left, now / most)]))
    return charts


def _widths(report: ModelReport) -> list[Chart]:
    """Widths of the layers; those that a compression dropped, too."""
    compressed: list[Json] = next(
        (entry["layers"] for entry in report.history.entries if entry["step"] == "compress"), []
    )
    if sum(not layer["dropped"] for layer in compressed) != len(report.layers):
        compressed = [{"dropped": False, "full_neurons": layer.full_neurons} for layer in report.layers]
    left = iter(report.layers)
    layers = [(None if full["dropped"] else next(left), full["full_neurons"]) for full in compressed]
    _, labels = shortened([layer.name for layer in report.layers])
    if any(layer is None for layer, _ in layers):
        labels = [str(number) for number in range(len(layers))]
    parts: dict[str, list[tuple[int, int] | None]] = {
        "queries and keys": [None if layer is None else (layer.rank, layer.full_rank) for layer, _ in layers],
        "heads": [None if layer is None else (layer.heads, layer.total_heads) for layer, _ in layers],
        "values of a head": [None if layer is None else (layer.value_width, layer.head_dim) for layer, _ in layers],
    }
    if all(layer is None or layer.neurons is not None for layer, _ in layers):
        parts["neurons"] = [None if layer is None else (layer.neurons or 0, full) for layer, full in layers]
    return [
        Chart(
            name,
            [
                Bar(label, "dropped", 0.0) if pair is None else Bar(label, _of(*pair), pair[0] / max(*pair, 1))
                for label, pair in zip(labels, pairs, strict=True)
            ],
        )
        for name, pairs in parts.items()
    ]


def _of(width: int, full: int) -> str:
    return f"{width:,} of {full:,}"


_SHARES = {"same prediction", "embedding cosine", "token cosine"}
"""Measures of agreement that are 1 at most."""


def _agreements(history: History) -> list[Chart]:
    """Agreement by step, and by source of the rows where there are several."""
    report = history.report
    founded = next((entry["step"] for entry in history.entries if entry["step"] == "compress"), Conversion.kind)
    measured: list[tuple[str, Mapping[str, float] | None]] = [(f"after {founded}", report.get("agreement"))]
    measured += [(f"after {founded}: {name}", own) for name, own in (report.get("agreement_by_source") or {}).items()]
    for entry in history.entries:
        name = entry["step"]
        if name == "heal":
            measured.append(("after heal", entry["after"]))
            measured += [(f"after heal: {source}", own) for source, own in entry.get("after_by_source", {}).items()]
        elif name == "export":
            measured.append((f"{entry['precision']} graph with its model", entry.get("agreement")))
            by_source = (entry.get("agreement_by_source") or {}).items()
            measured += [(f"{entry['precision']} graph: {source}", own) for source, own in by_source]
        elif name == "evaluate" and entry.get("against"):
            measured.append((f"evaluated with {entry['against']['model']}", entry["against"].get("agreement")))
    by_measure: dict[str, list[Bar]] = {}
    for when, agreement in measured:
        for measure, value in named(agreement or {}).items():
            if measure == "loss":  # of the training
                continue
            share = min(max(value, 0.0), 1.0) if measure in _SHARES else None
            by_measure.setdefault(measure, []).append(Bar(when, short(value), share))
    return [Chart(measure, bars) for measure, bars in by_measure.items()]


_ERRORS = {
    "error": "query-key products (weights)",
    "score_error": "scores",
    "held_out_error": "scores, held out",
    "output_error_before": "attention output, as solved",
    "output_error_after": "attention output, refined",
}


def _errors(history: History) -> list[Chart]:
    charts = []
    for key, title in _ERRORS.items():
        values = {layer["name"]: layer[key] for layer in history.layers if layer.get(key) is not None}
        charts += _by_layer(title, values)
    for entry in history.entries:
        if entry["step"] == "refine":
            kept = {name: layer["after" if layer["kept"] else "before"] for name, layer in entry["layers"].items()}
            charts += _by_layer("attention output, refined", kept)
        elif entry["step"] == "expand":
            charts += _by_layer("expansion", {layer["name"]: layer["error"] for layer in entry["layers"]})
    return charts


def _by_layer(title: str, values: Mapping[str, float]) -> list[Chart]:
    if not values:
        return []
    _, labels = shortened(list(values))
    return [Chart(title, _relative(labels, list(values.values())))]


def _relative(labels: Sequence[str], values: Sequence[float]) -> list[Bar]:
    """Bars of which the longest is whole."""
    most = max(map(abs, values)) or 1.0
    return [Bar(label, short(value), abs(value) / most) for label, value in zip(labels, values, strict=True)]


def _forms(history: History) -> list[Chart]:
    candidates: Json = (history.report.get("choice") or {}).get("candidates", {})
    if not candidates:
        return []
    chosen = history.report["choice"].get("chosen")
    labels = [f"{form} (chosen)" if form == chosen else form for form in candidates]
    sizes = [candidate["parameters"] for candidate in candidates.values()]
    most = max(*sizes, 1)
    return [
        Chart("predicted error", _relative(labels, [candidate["error"] for candidate in candidates.values()])),
        Chart(
            "query/key parameters",
            [Bar(label, f"{size:,}", size / most) for label, size in zip(labels, sizes, strict=True)],
        ),
    ]


def _training(history: History) -> list[Chart]:
    charts = []
    for entry in history.entries:
        evaluations = entry.get("evaluations") or []
        for name in evaluations[0] if evaluations else ():
            if name not in ("step", "rows"):
                steps = [f"step {each['step']:.0f}" for each in evaluations if name in each]
                values = [each[name] for each in evaluations if name in each]
                title = next(iter(named({name: 0.0})), name)
                charts.append(Chart(f"{entry['step']}: {title}", _relative(steps, values)))
    return charts


def _speed(history: History) -> Chart | None:
    """The speed that the last step that measured it found."""
    speed = history.report.get("speed")
    if not speed:
        return None
    most = max(1.0, speed["ratio"])
    rows = f"{speed['rows']} rows" + (f" of {speed['length']} tokens" if speed["length"] is not None else "")
    threads = f"{speed['threads']} thread{'s' if speed['threads'] > 1 else ''}"
    return Chart(
        f"{rows}, {speed['dtype']}, {speed['device']}, {threads}, {speed.get('runtime', 'torch')}",
        [
            Bar("before", "1", 1 / most),
            Bar("after", f"{speed['ratio']:.2f} ({speed['low']:.2f} to {speed['high']:.2f})", speed["ratio"] / most),
        ],
    )


def _rendered(text: str) -> Markup:
    """A card as HTML, without HTML or images of its own; its headings one level lower."""
    parser = MarkdownIt("commonmark", {"html": False}).enable("table").disable("image")
    tokens = parser.parse(text)
    for token in tokens:
        if token.type in ("heading_open", "heading_close"):
            token.tag = f"h{min(6, int(token.tag[1]) + 1)}"
    html = parser.renderer.render(tokens, parser.options, {})
    return Markup(html.replace("<table>", '<div class="scroll"><table>').replace("</table>", "</table></div>"))
