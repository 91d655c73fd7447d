"""Measures the speed of models in folders (`collab bench`)."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from ..device import resolve_device
from ..errors import CheckpointError, ConfigurationError, OutOfMemoryError
from ..evaluation.bench import Grid, measure, too_large
from ..evaluation.bench import bench as bench_models
from ..evaluation.bench_report import BenchedModel, BenchReport, PeakMemory
from ..evaluation.options import BenchOptions
from ..evaluation.timing import Run
from ..evaluation.worker import load_any, workers
from ..graphs.options import GRAPH_FILES, ExportOptions, Runtime
from ..graphs.served import find_graph, runtime_of, session_of
from ..io.checkpoint import Checkpoint
from ..io.load import load
from ..io.options import LoadOptions
from ..io.read import check_weight_files, resolve_source
from ..models.layers import count_parameters
from ..progress import Progress, no_progress
from .export import export


def bench(
    model: str,
    against: str | None = None,
    options: BenchOptions | None = None,
    *,
    runtime: Runtime | None = None,
    load_options: LoadOptions | None = None,
    progress: Progress = no_progress,
) -> BenchReport:
    """Measures speed, memory and size of a model, or of two alternately.

    Graphs that `collab export` wrote run in their own runtime, each model in a process of its own.

    Args:
        model: folder or Hub id of an original or a converted model.
        against: folder or Hub id of a second model.
        options: what to measure.
        runtime: what runs models that are not graphs: ``torch``, or ``onnxruntime`` or ``openvino`` with a graph in
            float32 that is written for the measurement. None for torch.
        load_options: how to read `model`.
        progress: called after every batch size and length.

    Raises:
        CheckpointError: if a model cannot be read.
        ConfigurationError: as `collab.bench`, and if a graph is for another runtime.
        DeviceError: as `collab.bench`.
        OutOfMemoryError: as `collab.bench`.
    """
    options = options or BenchOptions()
    names = [model, *([] if against is None else [against])]
    progress("loading the model", 0, None)
    graphs = [runtime not in (None, "torch") or find_graph(name) is not None for name in names]
    if any(graphs):
        if options.compile or resolve_device(options.device or "cpu").type != "cpu":
            raise ConfigurationError(
                "Graphs are measured on a CPU and are not compiled: use device cpu, without compile."
            )
        if options.dtype != "float32" and all(graphs):
            raise ConfigurationError(
                f"dtype={options.dtype} (--dtype) is for models that run in PyTorch: a graph has the precision that "
                "it was exported with. Export one with --precision, and measure its folder."
            )
        with tempfile.TemporaryDirectory(prefix="collab-") as folder:
            paths = [
                _for_runtime(name, runtime, Path(folder) / str(number), load_options if number == 0 else None)
                for number, name in enumerate(names)
            ]
            return _bench_apart(paths, names, options, progress)
    device, dtype = resolve_device(options.device), options.torch_dtype
    loaded = [load(model, load_options, with_processor=False)]
    if against is not None:
        loaded.append(load(against, with_processor=False))
    for checkpoint in loaded:
        network: Any = checkpoint.model
        network.to(device=device, dtype=dtype)
    report = bench_models([checkpoint.model for checkpoint in loaded], options, names=names, progress=progress)
    notes = list(report.notes)
    measured = [_measured(*pair, report, options, notes) for pair in zip(loaded, report.models, strict=True)]
    return replace(report, models=tuple(measured), notes=tuple(dict.fromkeys(notes)))


def _for_runtime(name: str, runtime: Runtime | None, folder: Path, load_options: LoadOptions | None) -> str:
    """What runs a model in a runtime: itself, or a graph in float32 that is written for the measurement."""
    graph = find_graph(name)
    if graph is not None:
        own = GRAPH_FILES[graph[1].name]
        if runtime is not None and runtime != own:
            raise ConfigurationError(f"{name} holds a graph for {own}, so --runtime {runtime} does not apply to it.")
        return name
    if runtime in (None, "torch"):
        return str(resolve_source(name, None if load_options is None else load_options.revision).folder)
    export(name, folder, ExportOptions("onnx" if runtime == "onnxruntime" else "openvino"), load_options=load_options)
    return str(folder)


def _bench_apart(paths: Sequence[str], names: Sequence[str], options: BenchOptions, progress: Progress) -> BenchReport:
    """Measures models that run in processes of their own, each in its runtime, in turn."""
    loaded = [load_any(path) for path in paths]
    grid = Grid.of([checkpoint.model for checkpoint in loaded], names, options)
    with workers(paths, options.torch_dtype) as processes:

        def runs_at(rows: int, length: int | None) -> list[Run]:
            for process in processes:
                process.prepare([(rows, length)], grid.vocabulary, options.seed)
            return [(process, [{}]) for process in processes]

        settings = measure(grid, runs_at, options, progress)
        memories = [process.memory() if options.memory else None for process in processes]
    measured = tuple(
        BenchedModel(
            name=name,
            class_name=type(checkpoint.model).__name__,
            parameters=count_parameters(checkpoint.model),
            file_bytes=file_bytes(checkpoint),
            attention=runtime_of(checkpoint.model)[0],
            cache=None,
            memory=memory,
            precision=_precision(checkpoint.model, options),
        )
        for name, checkpoint, memory in zip(names, loaded, memories, strict=True)
    )
    report = grid.report(measured, settings, options, torch.device("cpu"))
    lacking = [_lacking(name, checkpoint) for name, checkpoint in zip(names, loaded, strict=True) if checkpoint.missing]
    return replace(report, notes=(*report.notes, *lacking))


def _lacking(name: str, checkpoint: Checkpoint) -> str:
    return f"{name} lacks weights, which were initialized at random: {', '.join(checkpoint.missing[:3])}."


def _precision(model: PreTrainedModel, options: BenchOptions) -> str:
    session = session_of(model)
    return options.dtype if session is None else session.precision


def file_bytes(loaded: Checkpoint) -> int:
    """Size of the weights files, or of the graph."""
    assert loaded.folder is not None
    session = session_of(loaded.model)
    if session is not None:
        return session.bytes
    return sum(file.stat().st_size for file in check_weight_files(loaded.folder))


def _measured(
    loaded: Checkpoint, measured: BenchedModel, report: BenchReport, options: BenchOptions, notes: list[str]
) -> BenchedModel:
    """Adds the size of the files, and on a CPU the peak memory of a separate process."""
    assert loaded.folder is not None
    folder = loaded.folder
    measured = replace(measured, file_bytes=file_bytes(loaded))
    if loaded.missing:
        notes.append(_lacking(measured.name, loaded))
    if not options.memory or loaded.model.device.type != "cpu":
        return measured
    memory, reason = _peak_memory(str(folder), *report.memory_at, options.torch_dtype)
    if reason is not None:
        notes.append(reason)
    return replace(measured, memory=memory)


def _peak_memory(
    folder: str, rows: int, length: int | None, dtype: torch.dtype
) -> tuple[PeakMemory | None, str | None]:
    """Peak resident memory of running a model at one batch size and length; or None, and why it was not measured.

    It is measured in a process of its own: in one that has run other work, the model reuses freed memory, and the peak
    belongs to that work.
    """
    try:
        with workers([folder], dtype) as (worker,):
            worker.prepare([(rows, length)])
            worker.seconds({})
            memory = worker.memory()
    except OutOfMemoryError as error:
        raise OutOfMemoryError(too_large(rows, length)) from error
    except CheckpointError as error:
        return None, f"Peak memory was not measured: {error}"
    return memory, None if memory else "Peak memory was not measured: this system has no /proc to read it from."
