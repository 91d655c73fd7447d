"""The speed of a model where it will be served: of its graph, beside that of the original in float32."""

from __future__ import annotations

import copy
import logging
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Unpack

import torch
from transformers import PreTrainedModel

from ..calibration.options import CalibrationRequest
from ..compression.options import CompressionConfig
from ..data.batches import Batch, of_one_length
from ..data.features import synthetic_features
from ..device import device_name
from ..errors import CollabError
from ..evaluation.speed import speed_of
from ..evaluation.timing import rounds_in_turn
from ..evaluation.worker import Worker, workers
from ..graphs.options import GRAPH_FILES, ExportOptions
from ..graphs.samples import sample
from ..graphs.trace import Graph
from ..graphs.write import Written, write_config, write_graphs
from ..io.checkpoint import Checkpoint
from ..io.options import TransformOptions
from ..models.inputs import has_length, input_kind, longest_input
from ..progress import Progress, no_progress
from ..steps.measurement import Speed
from .export import export_timed
from .transform import Run

logger = logging.getLogger(__name__)

_LENGTH = 128
"""Positions of sample inputs other than text."""

_ROUNDS = 21
_RANGES = 64
"""Rows that the ranges of activations are measured on for a graph that is only timed."""

_TOGETHER = 8


class GraphTimer:
    """Measures how many times as fast as the original's graph in float32 a model's graph is, in the same runtime.

    Args:
        original: the original.
        options: format and precision of the graphs that are timed.
        rows: rows of a batch.
        length: tokens of a row.
        folder: folder for the graphs.
        progress: called before every graph.
    """

    def __init__(
        self, original: Checkpoint, options: ExportOptions, rows: int, length: int, folder: Path, progress: Progress
    ) -> None:
        self._original, self._options, self._folder, self._progress = original, options, folder, progress
        self._rows = rows
        self._length = min(length, longest_input(original.model)) if has_length(original.model) else None
        self._count = 0

    @cached_property
    def _reference(self) -> Path:
        """The original's graph, which only a process that measures writes."""
        return self._write(self._original.model, ExportOptions(self._options.format))

    def __call__(self, model: PreTrainedModel) -> float:
        """How many times as fast a model is."""
        self._progress("measuring speed in the runtime", 0, None)
        return self.speed(self._write(model, self._options)).ratio

    def measured(self, written: Written, model: PreTrainedModel, run: Run) -> Speed | None:
        """The speed of a graph that was written of a model; None, with a warning, if it cannot be measured."""
        run.progress("measuring speed in the runtime", 0, None)
        try:
            return self.speed(written.file)
        except (CollabError, OSError) as error:  # the graph is there without it
            logger.warning("The speed of the graph could not be measured: %s", error)
            return None

    def speed(self, graph: Path) -> Speed:
        """The speed of a graph that was written before."""
        with workers([str(self._reference), str(graph)], torch.float32) as processes:
            times = self._rounds(processes)
        return speed_of(
            times,
            rows=self._rows,
            length=self._length,
            device=device_name(torch.device("cpu")),
            dtype=self._options.precision,
            runtime=GRAPH_FILES[self._options.file],
        )

    def _rounds(self, processes: list[Worker]) -> list[list[float]]:
        vocabulary = getattr(self._original.model.config, "vocab_size", None)
        for process in processes:
            process.prepare([(self._rows, self._length)], vocabulary)
        return rounds_in_turn([(process, [{}]) for process in processes], _ROUNDS, warm=3)

    def _write(self, model: PreTrainedModel, options: ExportOptions) -> Path:
        folder = self._folder / str(self._count)
        self._count += 1
        folder.mkdir()
        network = model if model.dtype == torch.float32 else copy.deepcopy(model).float()
        write_config(network, folder)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            write_graphs([Graph(network)], folder, Path(scratch), options, self._batches())
        return folder / options.file

    def _batches(self) -> list[Batch]:
        model, processor = self._original.model, self._original.processor
        if input_kind(model) != "text":
            generator = torch.Generator().manual_seed(0)
            return [sample(model, _TOGETHER, _LENGTH, generator) for _ in range(_RANGES // _TOGETHER)]
        return of_one_length(model, processor, synthetic_features(model, processor, _RANGES))


def serve(
    model: str,
    output: str | Path,
    options: ExportOptions,
    *,
    original: Checkpoint,
    config: CompressionConfig,
    calibration: CalibrationRequest | None = None,
    measure_speed: bool = True,
    **more: Unpack[TransformOptions],
) -> Checkpoint:
    """Writes a model's graph, and measures its speed beside the original's in float32, unless it writes text.

    Args:
        model: folder of the model.
        output: folder to write.
        options: format and precision.
        original: the model that it was made from.
        config: has the rows and tokens that speed is measured on.
        calibration: as in `collab.checkpoints.export`.
        measure_speed: whether to measure its speed.
        **more: see `TransformOptions`.

    Returns:
        The model, with an `Export` and, if it was measured, a `Speed` as its last steps.

    Raises:
        CollabError: as `collab.checkpoints.export`.
    """
    with graph_timer(original, options, config, more.get("progress", no_progress)) as timer:
        return export_timed(model, output, options, calibration, timer.measured if measure_speed else None, **more)


@contextmanager
def graph_timer(
    original: Checkpoint, options: ExportOptions, config: CompressionConfig, progress: Progress
) -> Iterator[GraphTimer]:
    """A `GraphTimer`, at the rows and tokens of a config, whose graphs are gone with the context."""
    with tempfile.TemporaryDirectory(prefix="collab-") as folder:
        yield GraphTimer(original, options, config.rows, config.length, Path(folder), progress)
