"""Expands a converted model in a folder into another folder (`collab expand`)."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Unpack

from ..conversion.expand import expand as expand_model
from ..conversion.expand import require_expandable
from ..errors import NotConvertedError
from ..io.checkpoint import Checkpoint
from ..io.load import load_source
from ..io.options import LoadOptions, TransformOptions
from ..io.read import Source
from .transform import Run, transform

logger = logging.getLogger(__name__)


def expand(model: str, output: str | Path, *, allow_error: float = 0.0, **more: Unpack[TransformOptions]) -> Checkpoint:
    """Expands a converted model in a folder or on the Hub into a folder that appears whole or not at all.

    The output is an ordinary checkpoint of the native class, with the tokenizer, sentence-transformers files, license
    and unused weights of the converted one, its report with this step appended, and a new card.

    Args:
        model: folder or Hub id.
        output: folder to write.
        allow_error: largest relative error of a layer; see `collab.expand`.
        **more: see [`TransformOptions`][collab.TransformOptions]; with `LoadOptions.trust_remote_code`,
            a tokenizer's code is copied.

    Returns:
        The native model as written; `Checkpoint.step` gives its `Expansion`.

    Raises:
        CollabError: as raised by `collab.load`, `collab.expand` and `collab.save`. No output is left behind.
    """

    def verb(checkpoint: Checkpoint, run: Run) -> Checkpoint:
        run.progress("expanding", 0, None)
        return expand_model(checkpoint, allow_error=allow_error)

    return transform(model, output, [verb], load=_load, **more)


def _load(source: Source, options: LoadOptions) -> Checkpoint:
    loaded = load_source(source, options)
    try:
        require_expandable(loaded.model)
    except NotConvertedError as error:
        raise NotConvertedError(
            f"{source.name} is a {type(loaded.model).__name__}, not a converted model, so there is nothing to expand."
        ) from error
    if loaded.missing:
        logger.warning("Not in the checkpoint, so initialized at random (seed 0): %s.", ", ".join(loaded.missing))
    return loaded
