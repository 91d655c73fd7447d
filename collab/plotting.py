"""What every figure needs of matplotlib."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .errors import ExtraError, OutputError

# Okabe and Ito's colours, which colour-blind readers can tell apart.
BLUE, ORANGE, GREEN, VERMILION, PURPLE, GREY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#999999"


def pyplot() -> Any:
    """matplotlib.pyplot, drawing to files only.

    Raises:
        ExtraError: if matplotlib is not installed.
    """
    try:
        import matplotlib

        matplotlib.use("agg")
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise ExtraError('Figures need matplotlib: pip install "collab[figures]".') from error
    return plt


def save(figure: Any, file: Path, dpi: int = 200) -> None:
    """Writes a figure and closes it.

    Raises:
        OutputError: if it cannot be written.
    """
    try:
        figure.savefig(file, dpi=dpi)
    except (OSError, ValueError) as error:
        raise OutputError(f"The figure could not be written to {file}: {error}.") from error
    finally:
        pyplot().close(figure)
