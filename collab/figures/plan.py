"""Figures of plans and of speeds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..decomposition.options import FORMS
from ..evaluation.bench_report import BenchReport
from ..planning.plan import Plan, Spectrum
from .style import BLUE, GREEN, GREY, ORANGE, VERMILION, pyplot, save

# Of the forms, in their order; markers tell them apart without colours.
_STYLES = ((GREY, "s"), (BLUE, "o"), (GREEN, "^"))


def draw_plan(plan: Plan, file: Path) -> None:
    """Draws predicted error against parameters; for a conversion, also the energy in principal components.

    The latter is the paper's figure 1.

    Args:
        plan: the plan.
        file: a .png, .pdf or .svg file.

    Raises:
        ExtraError: if matplotlib is not installed.
        OutputError: if the file cannot be written.
    """
    plt = pyplot()
    figure, axes = plt.subplots(1, 1 + bool(plan.spectra), figsize=(10, 4), layout="constrained", squeeze=False)
    left = axes[0, 0]
    for form, (color, mark) in zip(FORMS, _STYLES, strict=True):
        points = sorted(
            (option.query_key if plan.spectra else option.model, option.error, option.rank)
            for option in plan.options
            if option.form == form
        )
        if points:
            left.plot([x for x, _, _ in points], [y for _, y, _ in points], mark + "-", color=color, label=form)
        for x, y, rank in points:
            left.annotate(f"R={rank}", (x, y), textcoords="offset points", xytext=(4, 4), fontsize=8)
    size = "query/key" if plan.spectra else "model's"
    left.set(xlabel=f"{size} parameters left", ylabel=f"predicted error of the {_error_of(plan)}")
    left.legend()
    if plan.spectra:
        _draw_spectra(axes[0, 1], plan.spectra)
    save(figure, file)


def _draw_spectra(axes: Any, spectra: Sequence[Spectrum]) -> None:
    """Draws the energy in principal components, the last layer darkest."""
    for name, color, label in (
        ("query", BLUE, "$W_Q$"),
        ("key", ORANGE, "$W_K$"),
        ("product", VERMILION, "$W_Q W_K^\\top$"),
    ):
        for number, spectrum in enumerate(spectra):
            axes.plot(
                spectrum.components,
                getattr(spectrum, name),
                color=color,
                alpha=0.35 + 0.65 * (number + 1) / len(spectra),
                linewidth=1,
                label=label if number + 1 == len(spectra) else None,
            )
    axes.set(xlabel="principal components", ylabel="energy captured", ylim=(0, 1.02))
    axes.legend(title="layers, last darkest")


def draw_bench(report: BenchReport, file: Path) -> None:
    """Draws latency and throughput by length, or by batch size for images, with quartiles.

    Args:
        report: the measurement.
        file: a .png, .pdf or .svg file.

    Raises:
        ExtraError: if matplotlib is not installed.
        OutputError: if the file cannot be written.
    """
    plt = pyplot()
    from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter

    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 4), layout="constrained")
    text = report.unit == "tokens"
    names = [model.name.rstrip("/").rpartition("/")[2] for model in report.models]
    if len(set(names)) < len(names):
        names = [model.name for model in report.models]
    sizes = sorted({setting.batch_size for setting in report.settings})
    for number, (name, (color, mark)) in enumerate(zip(names, ((BLUE, "o"), (VERMILION, "s")), strict=False)):
        # One line per batch size; for images the batch size is the axis.
        for line, size in enumerate(sizes if text else [None]):
            settings = [setting for setting in report.settings if size is None or setting.batch_size == size]
            spreads = [setting.seconds[number] for setting in settings]
            positions = [setting.length if text else setting.batch_size for setting in settings]
            median, low, high = (
                np.array([getattr(spread, name) for spread in spreads]) for name in ("median", "low", "high")
            )
            count = np.array([setting.batch_size * (setting.length or 1) for setting in settings])
            style = {
                "color": color,
                "marker": mark,
                "linestyle": ("-", "--", ":", "-.")[line % 4],
                "markerfacecolor": color if line == 0 else "white",
                "capsize": 2,
                "label": name if size is None else f"{name}, batch of {size}",
            }
            left.errorbar(positions, median * 1e3, yerr=[(median - low) * 1e3, (high - median) * 1e3], **style)
            rate = count / median
            right.errorbar(positions, rate, yerr=[rate - count / high, count / low - rate], **style)
    ticks = sorted({setting.length or setting.batch_size for setting in report.settings})
    for axes, label in ((left, "milliseconds for a call"), (right, f"{report.unit} per second")):
        axes.set(xlabel="tokens of a row" if text else f"{report.unit} in a batch", ylabel=label, xscale="log")
        axes.set_xticks(ticks, [str(tick) for tick in ticks])
        axes.xaxis.set_minor_locator(NullLocator())
        axes.grid(alpha=0.3)
    left.set_yscale("log")
    left.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    left.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    left.yaxis.set_minor_locator(NullLocator())
    right.set_ylim(bottom=0)
    right.legend(fontsize=8)
    title = f"{report.device}, {report.dtype}, median and quartiles of {report.rounds} rounds"
    figure.suptitle(title, fontsize=9)
    save(figure, file, 300)


def _error_of(plan: Plan) -> str:
    if not plan.spectra:
        return "outputs"
    return "weights" if plan.calibration is None else "scores"
