"""Leaves tokens out of a checkpoint before it is converted or compressed (`--keep-tokens`)."""

from __future__ import annotations

from ..calibration.options import CalibrationRequest
from ..conversion.vocabulary import keep_tokens
from ..data.rows import all_texts
from ..data.source import DataSource, Mixture
from ..errors import ConfigurationError
from ..io.checkpoint import Checkpoint
from ..models.inputs import has_decoder
from ..training.options import HealRequest
from .transform import Run, Verb


def fewer_tokens(text: str | DataSource, calibration: CalibrationRequest | None, heal: HealRequest | None) -> Verb:
    """The verb that keeps only the tokens that a text uses.

    Args:
        text: a file or another source, or ``"auto"`` for the text of calibration or healing.
        calibration: data to calibrate on.
        heal: data to heal on.

    Raises:
        ConfigurationError: if the text is that of calibration or healing, and there is none, or none of what an
            encoder-decoder writes.
        CollabError: as raised by `collab.keep_tokens`.
    """

    def verb(checkpoint: Checkpoint, run: Run) -> Checkpoint:
        run.progress("leaving out tokens", 0, None)
        sources = _sources(text, calibration, heal)
        alone = next((source.path for source in sources if len(source.columns) < 2), None)
        if text == "auto" and has_decoder(checkpoint.model) and alone is not None:
            raise ConfigurationError(
                f"keep_tokens='auto' (--keep-tokens auto) would leave out the tokens that {checkpoint.name} writes: "
                f"{alone} gives sources without targets. Name both columns (--text-column), or a file with text "
                "of both kinds (--keep-tokens FILE)."
            )
        return keep_tokens(checkpoint, all_texts(sources))

    return verb


def _sources(
    text: str | DataSource, calibration: CalibrationRequest | None, heal: HealRequest | None
) -> list[DataSource]:
    if isinstance(text, DataSource):
        return [text]
    if text != "auto":
        return [DataSource(text)]
    sources = text_sources(calibration, heal)
    if sources:
        return sources
    raise ConfigurationError(
        "keep_tokens='auto' (--keep-tokens auto) takes the tokens of the text for calibration or healing; give one, or "
        "a file of text."
    )


def text_sources(calibration: CalibrationRequest | None, heal: HealRequest | None) -> list[DataSource]:
    """The files and data sets of calibration or, if it has none, of healing."""
    for request in (calibration, heal):
        given = request.source if request is not None else None
        several = given.sources.values() if isinstance(given, Mixture) else [given]
        sources = [source for source in several if isinstance(source, DataSource)]
        if sources:
            return sources
    return []
