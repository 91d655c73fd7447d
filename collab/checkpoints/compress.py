"""Compresses a model in a folder into another folder (`collab compress`)."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path
from typing import Unpack

from ..calibration.options import CalibrationRequest
from ..compression.compress import compress as compress_model
from ..compression.compressions import require_compressible, require_rows
from ..compression.options import CompressionConfig
from ..data.source import DataSource
from ..errors import ConfigurationError
from ..graphs.options import ExportOptions
from ..graphs.samples import check_exportable, writes
from ..io.checkpoint import Checkpoint
from ..io.load import load_native
from ..io.options import LoadOptions, TransformOptions
from ..io.read import Source
from ..training.options import HealRequest
from .beginning import Beginning
from .calibrate import calibrate
from .export import require_packages
from .heal import healed, trial
from .serving import graph_timer
from .speed import speed_at
from .transform import Run, transform
from .vocabulary import fewer_tokens


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
        beginning = None
        if heal is not None:
            beginning = Beginning.of(checkpoint, moments, [request.options, config, serve, heal], run)
            beginning.check()
        with contextlib.ExitStack() as stack:
            timer = None
            if serve is not None and config.speedup is not None:
                timer = stack.enter_context(graph_timer(checkpoint, serve, config, run.progress))
            compressed = compress_model(
                checkpoint,
                config,
                moments,
                timer=timer,
                healer=None if heal is None else trial(heal, checkpoint, run),
                once=None if beginning is None else beginning.choice,
                progress=run.progress,
            )
        if beginning is not None:
            beginning.take(compressed.model)
        return compressed

    verbs = [
        None if keep_tokens is None else fewer_tokens(keep_tokens, calibration, heal),
        narrow,
        None if heal is None else healed(heal),
        speed_at(config.rows, config.length) if measure_speed else None,
    ]

    def load(source: Source, options: LoadOptions) -> Checkpoint:
        checkpoint = load_native(source, options)
        require_compressible(checkpoint.model)
        if serve is not None:
            check_exportable(checkpoint.model)
        if serve is not None and config.speedup is not None and writes(checkpoint.model):
            raise ConfigurationError(
                f"{checkpoint.name} writes text, and the speed of graphs that do is not measured. Leave runtime "
                "(--runtime) out, or give another budget."
            )
        return checkpoint

    return transform(model, output, verbs, load=load, trains=heal is not None, **more)
