"""Leaves tokens out of a checkpoint before it is converted or compressed (`--keep-tokens`)."""

from __future__ import annotations

from dataclasses import replace

from ..calibration.options import CalibrationRequest
from ..conversion.vocabulary import KeptTokens, keep_tokens
from ..data.rows import all_texts
from ..data.source import DataSource
from ..errors import ConfigurationError
from ..io.load import Checkpoint
from ..models.inputs import has_decoder
from ..training.options import HealRequest


def fewer_tokens(
    checkpoint: Checkpoint,
    text: str | DataSource,
    calibration: CalibrationRequest | None,
    heal: HealRequest | None,
) -> tuple[Checkpoint, KeptTokens]:
    """The checkpoint with only the tokens that a text uses.

    Args:
        checkpoint: the original.
        text: a file or another source, or ``"auto"`` for the text of calibration or healing.
        calibration: data to calibrate on.
        heal: data to heal on.

    Raises:
        ConfigurationError: if the text is that of calibration or healing, and there is none, or none of what an
            encoder-decoder writes.
        CollabError: as raised by `collab.keep_tokens`.
    """
    source = _source(text, calibration, heal)
    if text == "auto" and has_decoder(checkpoint.model) and len(source.columns) < 2:
        raise ConfigurationError(
            f"keep_tokens='auto' (--keep-tokens auto) would leave out the tokens that {checkpoint.source.name} writes: "
            f"{source.path} gives sources without targets. Name both columns (--text-column), or a file with text of "
            "both kinds (--keep-tokens FILE)."
        )
    kept = keep_tokens(checkpoint.model, checkpoint.tokenizer, all_texts(source))
    unused = kept.cut(checkpoint.unused)
    return replace(checkpoint, model=kept.model, new_tokenizer=kept.tokenizer, unused=unused), kept


def what_stays(kept: KeptTokens) -> str:
    """A note for the user."""
    written = " It can write no other tokens." if has_decoder(kept.model) else ""
    return (
        f"The vocabulary has {kept.tokens.after:,} of {kept.tokens.before:,} tokens, those of {kept.texts:,} texts: "
        "text of the same tokens is encoded as before, other words are split into shorter tokens or become unknown. "
        f"All parameters before that: {kept.parameters.before:,}.{written}"
    )


def _source(text: str | DataSource, calibration: CalibrationRequest | None, heal: HealRequest | None) -> DataSource:
    if isinstance(text, DataSource):
        return text
    if text != "auto":
        return DataSource(text)
    for request in (calibration, heal):
        if request is not None and isinstance(request.source, DataSource):
            return request.source
    raise ConfigurationError(
        "keep_tokens='auto' (--keep-tokens auto) takes the tokens of the text for calibration or healing; give one, or "
        "a file of text."
    )
