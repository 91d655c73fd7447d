"""`collab expand`."""

from __future__ import annotations

import click

from .command import command
from .options.model import model_in, model_out
from .session import Session


@command(
    "collab expand converted native",
    "collab expand converted native --allow-error 0.05",
    summary="Write a converted model in its original class, which needs no code of its own.",
)
@click.option(
    "--allow-error",
    default=0.0,
    help="Relative error of a layer's query-key products at most, where a native layer cannot hold them exactly.",
)
@model_in
@model_out
def expand(session: Session) -> None:
    """Turn a converted MODEL back into a plain model of its original class, and write it to the folder OUTPUT.

    For servers that know only native classes: the result needs no code of its own. A conversion has the original's size
    again; a model that was compressed with --native stays smaller.
    """
    session.begin()
    from ..checkpoints.expand import expand as expand_checkpoint
    from ..steps.export import Expansion
    from .outcome import finish

    finish(session, session.call(expand_checkpoint), Expansion)
