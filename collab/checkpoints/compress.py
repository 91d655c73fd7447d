"""Compresses a model in a folder into another folder (`collab compress`)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ..calibration.calibrate import Calibration
from ..calibration.options import CalibrationRequest
from ..compression.compress import compress as compress_model
from ..compression.compressions import require_compressible, require_rows
from ..compression.options import CompressionConfig
from ..data.source import DataSource
from ..io.checkpoint import Checkpoint
from ..io.load import load_native
from ..io.options import LoadOptions, SaveOptions
from ..io.read import Source
from ..progress import Progress, no_progress
from ..training.options import HealRequest
from .calibrate import calibrate
from .heal import healed
from .speed import speed
from .transform import Run, Verb, transform
from .vocabulary import fewer_tokens


def compress(
    model: str,
    output: str | Path,
    config: CompressionConfig,
    *,
    calibration: CalibrationRequest | None = None,
    heal: HealRequest | None = None,
    load_options: LoadOptions | None = None,
    save_options: SaveOptions | None = None,
    keep_tokens: str | DataSource | None = None,
    measure_speed: bool = False,
    progress: Progress = no_progress,
) -> Checkpoint:
    """Compresses a checkpoint into a folder that appears whole or not at all.

    Args:
        model: folder or Hub id of an original.
        output: folder to write.
        config: settings of the compression; `healed` follows from `heal`.
        calibration: rows to calibrate on; by default random words.
        heal: data to heal the compressed model on; None for no training. Unfinished healing is kept in
            `OUTPUT.training`, and the same call resumes it.
        load_options: how to read the original.
        save_options: how to write the result.
        keep_tokens: as in `collab.checkpoints.convert`. What is left out counts towards a budget of parameters.
        measure_speed: whether to measure how many times as fast as the original the result is.
        progress: called during calibration and compression, and after every step of healing.

    Returns:
        The compressed model as written; `Checkpoint.step` gives its `Compression`.

    Raises:
        CollabError: as raised by `collab.load`, `collab.calibrate`, `collab.compress`, `collab.heal` and `collab.save`.
            No output is left behind.
    """
    config = replace(config, healed=heal is not None)

    def narrow(checkpoint: Checkpoint, run: Run) -> Checkpoint:
        moments = _calibrate(checkpoint, calibration, run.progress)
        return compress_model(checkpoint, config, moments, progress=run.progress)

    verbs: list[Verb] = [] if keep_tokens is None else [fewer_tokens(keep_tokens, calibration, heal)]
    verbs.append(narrow)
    if heal is not None:
        verbs.append(healed(heal))
    if measure_speed:
        verbs.append(speed)
    return transform(
        model,
        output,
        verbs,
        load=_load,
        trains=heal is not None,
        load_options=load_options,
        save_options=save_options,
        progress=progress,
    )


def _load(source: Source, options: LoadOptions) -> Checkpoint:
    checkpoint = load_native(source, options)
    require_compressible(checkpoint.model)
    return checkpoint


def _calibrate(checkpoint: Checkpoint, request: CalibrationRequest | None, progress: Progress) -> Calibration:
    """Moments and rows; raises a CalibrationError if there are none."""
    calibration, _ = calibrate(checkpoint, request or CalibrationRequest(), progress=progress)
    return require_rows(calibration)
