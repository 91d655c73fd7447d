"""`collab expand`."""

from __future__ import annotations

from pathlib import Path

import click

from ..io.options import LoadOptions, SaveOptions
from .command import command
from .options.model import model_in, model_out
from .session import Session


@command(
    "collab expand converted native",
    "collab expand converted native --allow-error 0.05",
)
@click.option(
    "--allow-error",
    default=0.0,
    help="Relative error of a layer's query-key products at most, where a native layer cannot hold them exactly.",
)
@model_in
@model_out
def expand(
    model: str,
    output: Path,
    *,
    allow_error: float,
    load_options: LoadOptions,
    save_options: SaveOptions,
    session: Session,
) -> None:
    """Turn a converted MODEL back into a plain model of its original class, and write it to the folder OUTPUT.

    For servers that know only native classes: the result needs no code of its own, and has the original's size again.
    """
    session.begin(model)
    from ..checkpoints.expand import expand as expand_checkpoint
    from ..steps.export import Expansion
    from .outcome import finish

    expanded = expand_checkpoint(
        model,
        output,
        allow_error=allow_error,
        load_options=load_options,
        save_options=save_options,
        progress=session.progress,
    )
    finish(session, expanded, Expansion, output=output)
