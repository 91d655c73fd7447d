"""Compresses a model in a folder into another folder (`collab compress`)."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

from ..calibration.cache import fingerprint
from ..calibration.calibrate import Calibration
from ..calibration.options import CalibrationRequest
from ..compression.choice import Choice, Once
from ..compression.compress import compress as compress_model
from ..compression.compressions import require_compressible, require_rows
from ..compression.options import CompressionConfig
from ..data.source import DataSource
from ..errors import ConfigurationError
from ..graphs.options import ExportOptions
from ..graphs.samples import writes
from ..io.checkpoint import Checkpoint
from ..io.load import load_native
from ..io.options import LoadOptions, TransformOptions
from ..io.read import Source
from ..io.staging import atomic_write
from ..processes import from_main, is_main_process
from ..steps.step import plain
from ..training.options import HealRequest
from ..training.work import CHOSEN
from .calibrate import calibrate
from .export import require_packages
from .heal import healed, trial
from .serving import graph_timer
from .speed import speed
from .transform import Run, transform
from .vocabulary import fewer_tokens

logger = logging.getLogger(__name__)


def compress(
    model: str,
    output: str | Path,
    config: CompressionConfig,
    *,
    calibration: CalibrationRequest | None = None,
    heal: HealRequest | None = None,
    keep_tokens: str | DataSource | None = None,
    measure_speed: bool = False,
    serve: ExportOptions | None = None,
    **more: Unpack[TransformOptions],
) -> Checkpoint:
    """Compresses a checkpoint into a folder that appears whole or not at all.

    Args:
        model: folder or Hub id of an original.
        output: folder to write.
        config: settings of the compression; `healed` follows from `heal`.
        calibration: rows to calibrate on; by default random words.
        heal: data to heal the compressed model on; None for no training. Unfinished healing is kept in
            `OUTPUT.training`, and the same call resumes it.
        keep_tokens: as in `collab.checkpoints.convert`. What is left out counts towards a budget of parameters.
        measure_speed: whether to measure how many times as fast as the original the result is, in PyTorch.
        serve: format and precision of the graph that `CompressionConfig.speedup` is measured of, in its runtime, beside
            the original's graph in float32; None to measure in PyTorch. `collab.checkpoints.export` writes the graph.
        **more: see [`TransformOptions`][collab.TransformOptions].

    Returns:
        The compressed model as written; `Checkpoint.step` gives its `Compression`.

    Raises:
        CollabError: as raised by `collab.load`, `collab.calibrate`, `collab.compress`, `collab.heal` and `collab.save`.
            No output is left behind.
    """
    config = replace(config, healed=heal is not None)
    if serve is not None:
        require_packages(serve)

    def narrow(checkpoint: Checkpoint, run: Run) -> Checkpoint:
        request = calibration or CalibrationRequest()
        moments = require_rows(calibrate(checkpoint, request, progress=run.progress)[0])
        settings = [request.options, config, serve, heal]
        with contextlib.ExitStack() as stack:
            timer = None
            if serve is not None and config.speedup is not None:
                timer = stack.enter_context(graph_timer(checkpoint, serve, config.length, run.progress))
            return compress_model(
                checkpoint,
                config,
                moments,
                timer=timer,
                healer=None if heal is None else trial(heal, checkpoint, run),
                once=None if heal is None else _once(checkpoint, moments, settings, run),
                progress=run.progress,
            )

    verbs = [
        None if keep_tokens is None else fewer_tokens(keep_tokens, calibration, heal),
        narrow,
        None if heal is None else healed(heal),
        speed if measure_speed else None,
    ]

    def load(source: Source, options: LoadOptions) -> Checkpoint:
        checkpoint = load_native(source, options)
        require_compressible(checkpoint.model)
        if serve is not None and config.speedup is not None and writes(checkpoint.model):
            raise ConfigurationError(
                f"{checkpoint.name} writes text, and the speed of graphs that do is not measured. Leave runtime "
                "(--runtime) out, or give another budget."
            )
        return checkpoint

    return transform(model, output, verbs, load=load, trains=heal is not None, **more)


def _once(checkpoint: Checkpoint, moments: Calibration, settings: list[Any], run: Run) -> Once:
    """Keeps the choice that settings led to with the unfinished healing of what is compressed."""
    key = [fingerprint(checkpoint.model, [*moments.train, *moments.held_out], seed=0), plain(settings)]
    digest = hashlib.sha256(json.dumps(key, sort_keys=True, default=repr).encode()).hexdigest()
    file = run.work / CHOSEN.replace("*", digest[:16])

    def read() -> Choice | None:
        if run.save_options.restart:
            file.unlink(missing_ok=True)
        try:
            return Choice.from_dict(json.loads(file.read_text(encoding="utf-8")))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def once(choose: Callable[[], Choice]) -> Choice:
        choice = from_main(read)
        if choice is not None:
            logger.info("The widths are those that were chosen before.")
            return choice
        choice = choose()
        if is_main_process():
            with atomic_write(file) as partial:
                partial.write_text(json.dumps(choice.to_dict()), encoding="utf-8")
        return choice

    return once
