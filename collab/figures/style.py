"""Colours, opening and saving of all figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..errors import ConfigurationError, ExtraError, OutputError
from ..io.staging import atomic_write, try_writing

# Okabe and Ito's colours, which colour-blind readers can tell apart.
BLUE, ORANGE, GREEN, VERMILION, GREY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#999999"


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
    """Writes a figure atomically, and closes it.

    Raises:
        OutputError: if it cannot be written.
    """
    try:
        with atomic_write(file) as partial:
            figure.savefig(partial, dpi=dpi)
    except (OSError, ValueError) as error:
        raise OutputError(f"The figure could not be written to {file}: {error}.") from error
    finally:
        pyplot().close(figure)


def figure_folder(folder: Path) -> None:
    """Creates a folder for figures if there is none, and checks that it can be written to.

    Raises:
        ExtraError: if matplotlib is not installed.
        OutputError: if it cannot be written to.
    """
    pyplot()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        try_writing(folder)
    except (OSError, ValueError) as error:
        raise OutputError(f"Figures could not be written to {folder}: {error}.") from error


def check_figure(file: Path) -> None:
    """Checks, before any work is done, that a figure can be written to a file.

    Raises:
        ConfigurationError: if the file type is not supported.
        ExtraError: if it is not installed.
        OutputError: if the folder does not exist.
    """
    pyplot()
    if file.suffix.lower() not in (".png", ".pdf", ".svg"):
        raise ConfigurationError(f"Unsupported figure type {file.name!r}; use .png, .pdf or .svg.")
    if not file.absolute().parent.is_dir():
        raise OutputError(f"The figure could not be written to {file}: there is no folder {file.parent}.")
