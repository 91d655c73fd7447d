"""Reports and plans as tables in the terminal."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich import box
from rich.console import Console
from rich.markdown import Markdown
from rich.table import Table

from ..decomposition.options import FORMS

if TYPE_CHECKING:
    from ..evaluation.bench_report import BenchReport
    from ..heads.pruning import Pruning
    from ..io.history import Step
    from ..io.report import ConversionReport
    from ..planning.plan import Plan


def show_report(report: ConversionReport, output: Path) -> None:
    """What a conversion did."""
    console = Console()
    pattern, names = shortened([layer.name for layer in report.layers])
    calibrated = report.calibration is not None
    forms = " and ".join(sorted({one.form for one in report.layers}))
    layers = plain_table(
        f"{forms}: {pattern}",
        _caption(
            "scores: how far the heads' scores moved on calibration inputs, relative to their size, each weighed by "
            "what it does to the model's output; held out: the same on rows that were held out of the calibration;"
            * calibrated,
            "weights: how far the heads' query-key products moved; parameters: of query and key, mixing and content "
            "included.",
        ),
    )
    headings = ["layer", "rank", *(["scores", "held out"] if calibrated else []), "weights", "sweeps", "parameters"]
    for heading in headings:
        layers.add_column(heading, justify="left" if heading == "layer" else "right", no_wrap=True)
    for name, one in zip(names, report.layers, strict=True):
        layers.add_row(
            name,
            f"{one.rank}/{one.full_rank}",
            *([_error(one.score_error), _error(one.held_out_error)] if calibrated else []),
            _error(one.error),
            f"{one.sweeps}{'' if one.converged else '+'}",
            f"{one.query_key.after:,}",
        )
    console.print(layers)
    if report.comparison:
        others = plain_table(f"Predicted error of the {'scores' if calibrated else 'weights'} at as many parameters")
        others.add_column("layer")
        for form in FORMS:
            others.add_column(form, justify="right")
        for name, row in zip(names, report.comparison, strict=True):
            found = (row[form] for form in FORMS)
            cells = (f"{_error(one['error'])} (R={one['rank']})" if one["rank"] else "" for one in found)
            others.add_row(name, *cells)
        console.print(others)
    totals = plain_table("Parameters")
    for heading in ("of", "before", "after", "after / before"):
        totals.add_column(heading, justify="left" if heading == "of" else "right")
    for name, count in (
        ("query and key (with mixing and content bias)", report.query_key),
        ("attention (with value and output projections)", report.attention),
        ("the model", report.model),
    ):
        totals.add_row(name, f"{count.before:,}", f"{count.after:,}", f"{count.ratio:.3f}")
    console.print(totals)
    if report.agreement:
        values = (item for item in report.agreement.items() if item[0] != "rows")
        measured = ", ".join(f"{name.replace('_', ' ')} {value:.4f}" for name, value in values)
        console.print(f"Against the original on {report.agreement['rows']} held-out rows: {measured}", highlight=False)
    if report.choice.get("candidates"):
        for form, one in report.choice["candidates"].items():
            mark = "*" if form == report.choice["chosen"] else " "
            faster = ", ".join(f"{one['faster'][length]:.2f}" for length in (32, 128, 512))
            console.print(
                f"{mark} {form}: error {one['error']:.4f}, {one['parameters']:,} query/key parameters, "
                f"attention about {faster} times as fast at 32, 128 and 512 tokens",
                highlight=False,
            )
    if not all(one.converged for one in report.layers):
        console.print("+ the solver was still gaining when its sweeps ran out; --max-sweeps allows more.")
    if report.query_key.ratio > 1:
        console.print(
            f"The {report.layers[0].form} form is larger than the original at this rank; a lower --rank is smaller."
        )
    for step in (one for one in report.history if one["step"] == "heal"):
        before, after = (
            ", ".join(f"{name.replace('_', ' ')} {value:.4f}" for name, value in step[when].items() if name != "rows")
            for when in ("before", "after")
        )
        console.print(f"Healed in {step['steps']} steps, on {step['data']['held_out']} held-out rows.", highlight=False)
        console.print(f"  before: {before}\n  after:  {after}", highlight=False)
    for note in report.notes:
        console.print(note, markup=False)
    console.print(
        f"Converted in {report.seconds:.1f} s. Reloaded, compared and written to {output}",
        markup=False,
        highlight=False,
    )


def show_step(step: Step, output: Path | None = None) -> None:
    """What was done to a model, as its card says it."""
    console = Console()
    console.print(Markdown(step.text))
    if output is not None:
        console.print(f"Wrote {output}", highlight=False)


def show_pruning(pruning: Pruning, output: Path) -> None:
    """What was pruned, and what healing did then."""
    from ..checkpoints.prune import pruning_step

    show_step(pruning_step(pruning.record))
    for step in pruning.record.get("history", []):
        click.echo(f"Healed in {step['steps']} steps: loss {step['before']['loss']:.4f} → {step['after']['loss']:.4f}")
    click.echo(f"Wrote {output}")


def show_plan(plan: Plan) -> None:
    """What a conversion would cost."""
    console = Console()
    what = "weights" if plan.calibration is None else "scores"
    lengths = list(plan.options[0].flops) if plan.options else []
    table = plain_table(
        "What each form would give",
        _caption(
            f"error: predicted, of the {what}, all layers together; query/key, model: parameters left; at 32 ...: the "
            "original's arithmetic of query/key projections and scores that is left for a sequence of so many tokens; "
            f"cache: bytes of keys for each token (the original's: {plan.cache_bytes:,}); *: nothing smaller is "
            "closer.",
        ),
    )
    columns = ("form", "rank", "error", "query/key", "model", *(f"at {length}" for length in lengths), "cache", "")
    for heading in columns:
        table.add_column(heading, justify="left" if heading == "form" else "right", no_wrap=True)
    for one in sorted(plan.options, key=lambda option: (-option.query_key, option.form)):
        table.add_row(
            one.form,
            str(one.rank),
            _error(one.error),
            f"{one.query_key:.3f}",
            f"{one.model:.3f}",
            *(f"{one.flops[length]:.2f}" for length in lengths),
            f"{one.cache_bytes:,}",
            "*" if one.frontier else "",
        )
    console.print(table)
    pattern, names = shortened([one.name for one in plan.spectra])
    spectra = plain_table(
        f"Principal components that hold 90 % of the energy: {pattern}",
        "Of the heads' query matrices side by side, of the key matrices, and of their product (figure 1 of the "
        "paper). Few for the product, many for the others: the heads share dimensions.",
    )
    for heading in ("layer", "query", "key", "product"):
        spectra.add_column(heading, justify="left" if heading == "layer" else "right")
    for name, layer in zip(names, plan.spectra, strict=True):
        found = (
            next(number for number, share in zip(layer.components, shares, strict=True) if share >= 0.9)
            for shares in (layer.query, layer.key, layer.product)
        )
        spectra.add_row(name, *map(str, found))
    console.print(spectra)
    console.print(plan.recommendation, highlight=False)


def show_bench(report: BenchReport) -> None:
    """Speed, memory and size, of a model or of two."""
    console = Console()
    two = len(report.models) == 2
    labels = ["model", "against"][: len(report.models)]
    what = plain_table(
        f"{report.device}, {report.dtype}, {report.threads} threads{', torch.compile' if report.compiled else ''}",
        _caption(
            *(f"{label}: {one.name};" for label, one in zip(labels, report.models, strict=True)),
            f"ms: of a call, median and quartiles of {report.rounds} rounds;",
            "ratio: how many times as fast model is, of the medians, with the quartiles of single rounds; "
            "above 1 it is faster." * two,
        ),
    )
    text = report.unit == "tokens"
    headings = [
        "batch",
        *(["length"] * text),
        "",
        "ms",
        "quartiles",
        f"{report.unit}/s",
        *(["ratio", "quartiles"] * two),
    ]
    for heading in headings:
        what.add_column(heading, justify="right" if heading else "left", no_wrap=True)
    for one in report.settings:
        ratio = [] if one.ratio is None else [f"{one.ratio.median:.2f}", f"{one.ratio.low:.2f} {one.ratio.high:.2f}"]
        for label, seconds, rate in zip(labels, one.seconds, one.per_second, strict=True):
            first = label == labels[0]
            where = [str(one.batch_size), *([str(one.length)] * text)] if first else [""] * (1 + text)
            spread = f"{_milliseconds(seconds.low)} {_milliseconds(seconds.high)}"
            what.add_row(
                *where, label, _milliseconds(seconds.median), spread, f"{rate:,.0f}", *(ratio if first else [])
            )
    console.print(what)
    rows, length = report.memory_at
    measured = any(one.memory is not None for one in report.models)
    resident = any(one.memory is not None and one.memory.libraries_bytes is not None for one in report.models)
    at = f"{rows} rows of {length} tokens" if length is not None else f"{rows} images"
    sizes = plain_table(
        "Size",
        _caption(
            "file: the weights on disk.",
            f"peak memory: at {at}{', of a process that does nothing else' if resident else ''}." * measured,
            "libraries: what of it was there before the model was loaded." * resident,
        ),
    )
    for heading in ["", "class", "parameters", "file", *["peak memory"] * measured, *["libraries"] * resident]:
        sizes.add_column(heading, justify="left" if heading in ("", "class") else "right", no_wrap=True)
    for label, model in zip(labels, report.models, strict=True):
        memory = model.memory
        row = [label, model.class_name, f"{model.parameters:,}", _megabytes(model.file_bytes)]
        if measured:
            row.append(_megabytes(None if memory is None else memory.peak_bytes))
        if resident:
            row.append(_megabytes(None if memory is None else memory.libraries_bytes))
        sizes.add_row(*row)
    console.print(sizes)
    for note in report.notes:
        console.print(note, markup=False, highlight=False)


def _milliseconds(seconds: float) -> str:
    """Three digits, without an exponent."""
    number = seconds * 1e3
    return f"{number:.{0 if number >= 100 else 1 if number >= 10 else 2}f}"


def _megabytes(count: int | None) -> str:
    return "" if count is None else f"{count / 1e6:,.1f} MB"


def plain_table(title: str, caption: str | None = None) -> Table:
    """A table as all commands show them."""
    return Table(
        title=title, caption=caption, box=box.SIMPLE_HEAD, padding=(0, 1), title_justify="left", caption_justify="left"
    )


def _caption(*parts: str) -> str:
    return " ".join(part for part in parts if part)


def _error(error: float | None) -> str:
    return "" if error is None else f"{error:.4f}"


def shortened(names: list[str]) -> tuple[str, list[str]]:
    """What module names have in common, with a star for the rest, and the rest of each."""
    parts = [name.split(".") for name in names]
    shortest = min(map(len, parts))
    start = next((i for i in range(shortest) if len({part[i] for part in parts}) > 1), shortest)
    end = next((i for i in range(shortest - start) if len({part[-1 - i] for part in parts}) > 1), shortest - start)
    rest = [".".join(part[start : len(part) - end]) for part in parts]
    if not all(rest):
        return names[0], [name.rpartition(".")[2] for name in names]
    return ".".join([*parts[0][:start], "*", *parts[0][len(parts[0]) - end :]]), rest
