"""`collab report`."""

from __future__ import annotations

from pathlib import Path

import click

from .command import command
from .options.measuring import page_options
from .options.model import model_weights
from .session import Session


@command(
    "collab report ./smaller",
    "collab report ./smaller --html smaller.html",
    summary="Show every step that was taken with a model, on the terminal or as a page.",
)
@page_options
@model_weights
def report(html: Path | None, overwrite: bool, session: Session) -> None:
    """Show the history of MODEL, which collab made: every step, with widths, agreement, speed and errors."""
    session.begin()
    from ..checkpoints.report import report as read_report
    from ..figures.pages import check_page
    from ..figures.report_page import write_report_page
    from .outcome import show_markdown

    if html is not None:
        check_page(html, overwrite)
    read = session.call(read_report)
    if html is not None:
        write_report_page(html, read)
    done = f"Wrote {html}"
    session.result(read.to_dict(), lambda: show_markdown(read.sections) if html is None else click.echo(done))
