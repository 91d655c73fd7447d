"""Figures, for the commands that draw."""

from __future__ import annotations

from pathlib import Path

from .errors import ConfigurationError, OutputError
from .planning import Plan

# Okabe and Ito's colours, which colour-blind readers can tell apart, with marks for those who see none.
_STYLES = {"concat": ("#999999", "s"), "cp": ("#0072B2", "o"), "tucker": ("#009E73", "^")}


def draw_plan(plan: Plan, file: Path) -> None:
    """Draws predicted error against parameters, and the energy in principal components (the paper's figure 1).

    Args:
        plan: what to draw.
        file: a .png, .pdf or .svg file.

    Raises:
        ConfigurationError: if matplotlib is not installed.
        OutputError: if the file cannot be written.
    """
    try:
        import matplotlib

        matplotlib.use("agg")
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise ConfigurationError('Figures need matplotlib: pip install "collab[figures]".') from error
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for form, (color, mark) in _STYLES.items():
        points = sorted((one.query_key, one.error, one.rank) for one in plan.options if one.form == form)
        left.plot([x for x, _, _ in points], [y for _, y, _ in points], mark + "-", color=color, label=form)
        for x, y, rank in points:
            left.annotate(f"R={rank}", (x, y), textcoords="offset points", xytext=(4, 4), fontsize=8)
    left.set(xlabel="query/key parameters left", ylabel=f"predicted error of the {_what(plan)}")
    left.legend()
    for name, color, label in (
        ("query", "#0072B2", "$W_Q$"),
        ("key", "#E69F00", "$W_K$"),
        ("product", "#D55E00", "$W_Q W_K^\\top$"),
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
    try:
        figure.savefig(file, dpi=200)
    except (OSError, ValueError) as error:
        raise OutputError(f"The figure could not be written to {file}: {error}.") from error
    finally:
        plt.close(figure)


def _what(plan: Plan) -> str:
    return "weights" if plan.calibration is None else "scores"
