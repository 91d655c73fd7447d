"""`collab inspect`."""

from __future__ import annotations

import click

from .command import command
from .options.measuring import lengths_option
from .options.model import model_weights
from .session import Session


@command(
    "collab inspect sentence-transformers/all-MiniLM-L6-v2",
    "collab inspect ./model --num-heads 4 --length 64",
    summary="Show the widths, parameters and arithmetic of a model, and what was done to it.",
)
@click.option("--num-heads", type=int, help="Inspect the model as if its config had this number of heads.")
@lengths_option
@model_weights
def inspect(session: Session) -> None:
    """Show what the attention of MODEL, original or converted, is made of: shapes, parameters, arithmetic."""
    session.begin()
    from ..checkpoints.inspect import inspect as inspect_checkpoint
    from .head_tables import show_inspection

    session.progress("inspecting", 0, None)
    inspection = session.call(inspect_checkpoint)
    session.result(inspection.to_dict(), lambda: show_inspection(inspection))
