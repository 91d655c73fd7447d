"""Has a model in a folder compute long rows in blocks, into another folder (`collab lengthen`)."""

from __future__ import annotations

from pathlib import Path
from typing import Unpack

from ..conversion.lengthen import lengthen as lengthen_model
from ..io.checkpoint import Checkpoint
from ..io.options import TransformOptions
from ..planning.long_rows import LongOptions
from .transform import Run, Verb, transform


def lengthen(
    model: str, output: str | Path, options: LongOptions | None = None, **more: Unpack[TransformOptions]
) -> Checkpoint:
    """Has a model in a folder or on the Hub compute long rows in blocks, in a folder that appears whole or not at all.

    Args:
        model: folder or Hub id of an original, a converted or a compressed model.
        output: folder to write; it always holds a collaborative model.
        options: settings.
        **more: see [`TransformOptions`][collab.TransformOptions].

    Returns:
        The model as written; `Checkpoint.step` gives its `Lengthening`.

    Raises:
        CollabError: as raised by `collab.load`, `collab.lengthen` and `collab.save`.
    """
    return transform(model, output, [lengthened(options)], **more)


def lengthened(options: LongOptions | None) -> Verb:
    """`collab.lengthen` as a verb.

    Args:
        options: settings.
    """

    def verb(checkpoint: Checkpoint, run: Run) -> Checkpoint:
        return lengthen_model(checkpoint, options)

    return verb
