"""Reads the history of a model in a folder (`collab report`)."""

from __future__ import annotations

from ..io.options import LoadOptions
from ..io.read import resolve_source
from ..io.report import ModelReport, read_report


def report(model: str, *, load_options: LoadOptions | None = None) -> ModelReport:
    """Reads the history of a model that collab made: converted, compressed, pruned, trained, expanded or exported.

    Args:
        model: folder or Hub id.
        load_options: how to read the model.

    Raises:
        CheckpointError: if there is no such model, or it has no history because collab did not make it.
        UnsupportedArchitectureError: if its attention is not supported.
    """
    return read_report(resolve_source(model, (load_options or LoadOptions()).revision))
