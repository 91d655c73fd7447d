"""Expanding a model in a folder into another folder: what `collab expand` does."""

from __future__ import annotations

import logging
from pathlib import Path

from ..conversion.expand import Expansion, expand, require_expandable
from ..errors import NotConvertedError, WeightsError
from ..io.history import read_report
from ..io.load import LoadOptions, load
from ..io.staging import check_output
from ..io.write import auto_class_of, republish
from ..models.families import collaborative_layers
from .expand_card import expanded_card, expansion_step

logger = logging.getLogger(__name__)


def expand_checkpoint(
    model: str,
    output: str | Path,
    *,
    allow_error: float = 0.0,
    reading: LoadOptions | None = None,
    overwrite: bool = False,
    command: str | None = None,
) -> Expansion:
    """Expands a converted model in a folder, or on the Hub, into a folder that appears whole or not at all.

    What is written is an ordinary checkpoint of the native class, with tokenizer, sentence-transformers files, license
    and unused weights of the converted one, its report with one step more, and a card of its own.

    Args:
        model: a folder or a Hub id.
        output: the folder to write.
        allow_error: see `expand`.
        reading: how to read the model; a tokenizer's code that may run is copied, too.
        overwrite: replace a model that collab wrote to `output`.
        command: the command line, for report and card.

    Raises:
        CollabError: of the kind that `load`, `expand` and `republish` raise; nothing is left behind then.
    """
    reading = reading or LoadOptions()
    output = Path(output).expanduser()
    loaded = load(model, reading)
    source = loaded.source.folder
    check_output(output, source, overwrite)
    try:
        family, native_class = require_expandable(loaded.model)
    except NotConvertedError as error:
        raise NotConvertedError(
            f"{model} is a {type(loaded.model).__name__}, not a converted model, so there is nothing to expand."
        ) from error
    layers = collaborative_layers(loaded.model)
    for name in loaded.missing:
        if any(name.startswith(f"{layer}.") for layer in layers):
            raise WeightsError(f"{name} is not in the checkpoint, so there is no attention to expand.")
    if loaded.missing:
        logger.warning("Not in the checkpoint, so initialized at random (seed 0): %s.", ", ".join(loaded.missing))
    expansion = expand(loaded.model, allow_error=allow_error)
    auto_class = auto_class_of(family.module, type(loaded.model))
    republish(
        expansion.model,
        output,
        source,
        expansion_step(expansion, model, command),
        unused=loaded.unused,
        card=expanded_card(source, read_report(source), output.name, native_class.__name__, auto_class),
        overwrite=overwrite,
        trust_remote_code=reading.trust_remote_code,
    )
    return expansion
