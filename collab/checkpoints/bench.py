"""Measuring models in folders: what `collab bench` does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from ..evaluation.bench import bench as bench_models
from ..evaluation.bench_report import BenchReport, Measured
from ..evaluation.options import BenchOptions
from ..evaluation.peak import peak_memory
from ..io.load import Checkpoint, load
from ..io.options import LoadOptions, Progress, no_progress
from ..io.read import check_weight_files


def bench(
    model: str,
    against: str | None = None,
    options: BenchOptions | None = None,
    *,
    load_options: LoadOptions | None = None,
    progress: Progress = no_progress,
) -> BenchReport:
    """Measures speed, memory and size of a model, and of another in turn with it.

    Args:
        model: a folder or a Hub id, of an original or a converted model.
        against: a folder or Hub id of another model.
        options: what to measure.
        load_options: how to read the model.
        progress: called after every batch size and length.

    Raises:
        CheckpointError: if a model cannot be read.
        ConfigurationError, DeviceError, OutOfMemoryError: as `collab.bench`.
    """
    options = options or BenchOptions()
    device, dtype = options.resolve_device(), options.torch_dtype
    loaded = [load(model, load_options), *([] if against is None else [load(against)])]
    for one in loaded:
        placed: Any = one.model
        placed.to(device=device, dtype=dtype)
    names = [model, *([] if against is None else [against])]
    report = bench_models([one.model for one in loaded], options, names=names, progress=progress)
    notes = list(report.notes)
    measured = [_measured(one, found, report, options, notes) for one, found in zip(loaded, report.models, strict=True)]
    return replace(report, models=tuple(measured), notes=tuple(dict.fromkeys(notes)))


def _measured(
    loaded: Checkpoint, found: Measured, report: BenchReport, options: BenchOptions, notes: list[str]
) -> Measured:
    """A model with what its folder and a process of its own say about it."""
    folder = loaded.source.folder
    found = replace(found, file_bytes=sum(file.stat().st_size for file in check_weight_files(folder)))
    if loaded.missing:
        notes.append(f"{found.name} lacks weights, which were random: {', '.join(loaded.missing[:3])}.")
    if not options.memory or loaded.model.device.type != "cpu":
        return found
    memory, reason = peak_memory(folder, *report.memory_at, options.torch_dtype, torch.get_num_threads())
    if reason is not None:
        notes.append(reason)
    return replace(found, memory=memory)
