"""Measures the speed of models in folders (`collab bench`)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from ..device import resolve_device
from ..evaluation.bench import bench as bench_models
from ..evaluation.bench_report import BenchedModel, BenchReport
from ..evaluation.options import BenchOptions
from ..evaluation.peak import peak_memory
from ..io.checkpoint import Checkpoint
from ..io.load import load
from ..io.options import LoadOptions
from ..io.read import check_weight_files
from ..progress import Progress, no_progress


def bench(
    model: str,
    against: str | None = None,
    options: BenchOptions | None = None,
    *,
    load_options: LoadOptions | None = None,
    progress: Progress = no_progress,
) -> BenchReport:
    """Measures speed, memory and size of a model, or of two alternately.

    Args:
        model: folder or Hub id of an original or a converted model.
        against: folder or Hub id of a second model.
        options: what to measure.
        load_options: how to read `model`.
        progress: called after every batch size and length.

    Raises:
        CheckpointError: if a model cannot be read.
        ConfigurationError: as `collab.bench`.
        DeviceError: as `collab.bench`.
        OutOfMemoryError: as `collab.bench`.
    """
    options = options or BenchOptions()
    device, dtype = resolve_device(options.device), options.torch_dtype
    progress("loading the model", 0, None)
    loaded = [load(model, load_options, with_processor=False)]
    if against is not None:
        loaded.append(load(against, with_processor=False))
    for checkpoint in loaded:
        network: Any = checkpoint.model
        network.to(device=device, dtype=dtype)
    names = [model, *([] if against is None else [against])]
    report = bench_models([checkpoint.model for checkpoint in loaded], options, names=names, progress=progress)
    notes = list(report.notes)
    measured = [_measured(*pair, report, options, notes) for pair in zip(loaded, report.models, strict=True)]
    return replace(report, models=tuple(measured), notes=tuple(dict.fromkeys(notes)))


def _measured(
    loaded: Checkpoint, measured: BenchedModel, report: BenchReport, options: BenchOptions, notes: list[str]
) -> BenchedModel:
    """Adds the size of the files, and on a CPU the peak memory of a separate process."""
    assert loaded.folder is not None
    folder = loaded.folder
    measured = replace(measured, file_bytes=sum(file.stat().st_size for file in check_weight_files(folder)))
    if loaded.missing:
        notes.append(
            f"{measured.name} lacks weights, which were initialized at random: {', '.join(loaded.missing[:3])}."
        )
    if not options.memory or loaded.model.device.type != "cpu":
        return measured
    memory, reason = peak_memory(folder, *report.memory_at, options.torch_dtype, torch.get_num_threads())
    if reason is not None:
        notes.append(reason)
    return replace(measured, memory=memory)
