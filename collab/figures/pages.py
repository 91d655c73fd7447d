"""Pages of HTML that open without a network: styles, scripts and drawings are inside."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from ..errors import ConfigurationError, OutputError
from ..io.failures import writing
from ..io.staging import atomic_write, try_writing


def check_page(file: Path, overwrite: bool = False) -> None:
    """Checks, before any work is done, that a page can be written to a file.

    Args:
        file: the file.
        overwrite: whether one that exists may be replaced.

    Raises:
        ConfigurationError: if its name does not end in .html.
        OutputError: if it cannot be written.
    """
    if file.suffix.lower() not in (".html", ".htm"):
        raise ConfigurationError(f"A page is a file that ends in .html, not {file.name!r}.")
    folder = file.absolute().parent
    try:
        if not folder.is_dir():
            raise OutputError(f"{file} cannot be written: there is no folder {file.parent}.")
        if file.is_dir():
            raise OutputError(f"{file} is a folder. Choose another name.")
        if os.path.lexists(file) and not overwrite:
            raise OutputError(f"{file} exists already. Pass overwrite=True (--overwrite) to replace it.")
        try_writing(folder)
    except OutputError:
        raise
    except OSError as error:
        raise OutputError(f"{file} cannot be written: {error}.") from error


def write_page(file: Path, template: str, **values: Any) -> None:
    """Writes a page, whole or not at all.

    Args:
        file: the file.
        template: name of a template in `collab/figures/templates`, without its suffix.
        values: its variables; all text is escaped.

    Raises:
        OutputError: if it cannot be written.
    """
    environment = Environment(
        loader=PackageLoader("collab.figures"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    text = environment.get_template(f"{template}.html").render(**values)
    with writing(str(file)), atomic_write(file) as partial:
        # A tokenizer may split a character into halves that no encoding has.
        partial.write_text(text, encoding="utf-8", errors="replace")
