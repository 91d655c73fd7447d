"""Has a model in a folder compute long rows in blocks, into another folder (`collab lengthen`)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Unpack

from ..conversion.lengthen import lengthen as lengthen_model
from ..data.rows import all_texts
from ..data.source import DataSource
from ..io.checkpoint import Checkpoint
from ..io.options import TransformOptions
from ..planning.long_rows import LongOptions
from .transform import Run, Verb, transform


def lengthen(
    model: str,
    output: str | Path,
    options: LongOptions | None = None,
    *,
    data: DataSource | None = None,
    **more: Unpack[TransformOptions],
) -> Checkpoint:
    """Has a model in a folder or on the Hub compute long rows in blocks, in a folder that appears whole or not at all.

    Args:
        model: folder or Hub id of an original, a converted or a compressed model.
        output: folder to write; it always holds a collaborative model.
        options: settings.
        data: text to choose dense layers on; used only with ``dense_layers="auto"``, which needs it.
        **more: see [`TransformOptions`][collab.TransformOptions].

    Returns:
        The model as written; `Checkpoint.step` gives its `Lengthening`.

    Raises:
        CollabError: as raised by `collab.load`, `collab.lengthen` and `collab.save`.
    """
    return transform(model, output, [lengthened(options, [] if data is None else [data])], **more)


def lengthened(options: LongOptions | None, sources: Sequence[DataSource] = ()) -> Verb:
    """`collab.lengthen` as a verb.

    Args:
        options: settings.
        sources: text to choose dense layers on.
    """

    def verb(checkpoint: Checkpoint, run: Run) -> Checkpoint:
        if options is not None and options.dense_layers == "auto":
            run.progress("choosing dense layers", 0, None)
        texts = all_texts(sources) if sources else None
        return lengthen_model(checkpoint, options, texts)

    return verb
