"""The figure of a plan."""

from __future__ import annotations

from pathlib import Path

from .planning import Plan
from .plotting import BLUE, GREEN, GREY, ORANGE, VERMILION, pyplot, save

# With marks for those who see no colours.
_STYLES = {"concat": (GREY, "s"), "cp": (BLUE, "o"), "tucker": (GREEN, "^")}


def draw_plan(plan: Plan, file: Path) -> None:
    """Draws predicted error against parameters, and the energy in principal components (the paper's figure 1).

    Args:
        plan: what to draw.
        file: a .png, .pdf or .svg file.

    Raises:
        ExtraError: if matplotlib is not installed.
        OutputError: if the file cannot be written.
    """
    plt = pyplot()
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for form, (color, mark) in _STYLES.items():
        points = sorted((one.query_key, one.error, one.rank) for one in plan.options if one.form == form)
        left.plot([x for x, _, _ in points], [y for _, y, _ in points], mark + "-", color=color, label=form)
        for x, y, rank in points:
            left.annotate(f"R={rank}", (x, y), textcoords="offset points", xytext=(4, 4), fontsize=8)
    left.set(xlabel="query/key parameters left", ylabel=f"predicted error of the {_what(plan)}")
    left.legend()
    for name, color, label in (
        ("query", BLUE, "$W_Q$"),
        ("key", ORANGE, "$W_K$"),
        ("product", VERMILION, "$W_Q W_K^\\top$"),
    ):
        for number, one in enumerate(plan.spectra):
            right.plot(
                one.components,
                getattr(one, name),
                color=color,
                alpha=0.35 + 0.65 * (number + 1) / len(plan.spectra),
                linewidth=1,
                label=label if number + 1 == len(plan.spectra) else None,
            )
    right.set(xlabel="principal components", ylabel="energy captured", ylim=(0, 1.02))
    right.legend(title="layers, last darkest")
    save(figure, file)


def _what(plan: Plan) -> str:
    return "weights" if plan.calibration is None else "scores"
