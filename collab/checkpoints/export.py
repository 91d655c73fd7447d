"""Exports a model in a folder as a graph into another folder (`collab export`)."""

from __future__ import annotations

import importlib
import logging
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

from transformers import PreTrainedModel

from ..calibration.options import CalibrationRequest
from ..data.batches import of_one_length
from ..data.mixture import Rows, rows_of
from ..errors import CheckpointError, ConfigurationError, ExtraError
from ..evaluation.compare import agreement_by_source
from ..evaluation.speed import measure_graph_speed
from ..graphs.caches import PAST, PRESENT
from ..graphs.check import check_graph, compare_graph
from ..graphs.options import ExportOptions
from ..graphs.runtime import graph_parts, open_graph, precision_settings
from ..graphs.samples import check_exportable, writes
from ..graphs.served import find_graph, load_graph, module_of
from ..graphs.write import Written, write_config, write_graphs
from ..graphs.writing import graphs_of
from ..io.card import CARD_FILE, render_card, source_metadata, with_sections
from ..io.checkpoint import Checkpoint
from ..io.head import fitting, pooling_of
from ..io.history import write_history
from ..io.load import load_source
from ..io.options import LoadOptions, SaveOptions, TransformOptions
from ..io.read import Source
from ..io.staging import check_space, staged
from ..io.write import base_model_of, carry_over
from ..models.inputs import has_decoder, has_length, input_kind, longest_target, with_targets
from ..models.layers import count_parameters
from ..steps.export import Export
from ..steps.measurement import Speed
from ..steps.step import installed_versions
from .transform import Run, transform

logger = logging.getLogger(__name__)

Measured = Callable[[Written, PreTrainedModel, Run], Speed | None]
"""Measures the speed of a graph that was written of a model."""


def export(
    model: str,
    output: str | Path,
    options: ExportOptions | None = None,
    *,
    calibration: CalibrationRequest | None = None,
    measure_speed: bool = False,
    **more: Unpack[TransformOptions],
) -> Checkpoint:
    """Writes a model as a graph into a folder that appears whole or not at all.

    A model that writes text becomes a graph of its encoder, if it has one, and one of its decoder with a cache. A graph
    takes any batch size and length. In float32 it is checked against PyTorch before it is put in place; in
    lower precision its differences, and its agreement with the model on held-out rows, go into the report.

    Args:
        model: folder or Hub id of an original or a converted model.
        output: folder to write.
        options: format and precision.
        calibration: rows to measure the ranges of activations on, and the agreement; by default random words. Only its
            `source` and `options` count.
        measure_speed: whether to measure how many times as fast as in float32 the graph is, in the same runtime on this
            processor; not of a model that writes text.
        **more: see [`TransformOptions`][collab.TransformOptions].

    Returns:
        The model, with an `Export` as its report, and a `Speed` after it if it was measured.

    Raises:
        ExtraError: if a package that writes or runs the graph is not installed.
        CheckpointError: if the model cannot be read.
        ConfigurationError: if calibration rows are needed and none are given.
        DataError: if they cannot be read or used.
        UnsupportedArchitectureError: if the model is neither one forward pass over text, images or recordings nor one
            that writes text, or cannot be traced.
        OutputError: if the folder cannot be written; nothing is left behind.
        VerificationError: if the graph does not compute what the model computes; nothing is left behind.
    """
    options = options or ExportOptions()
    measured = _beside_float32 if measure_speed else None
    return export_timed(model, output, options, calibration, measured, **more)


def export_timed(
    model: str,
    output: str | Path,
    options: ExportOptions,
    calibration: CalibrationRequest | None,
    measured: Measured | None,
    **more: Unpack[TransformOptions],
) -> Checkpoint:
    """As `export`, with another measure of speed.

    Args:
        model: as in `export`.
        output: as in `export`.
        options: as in `export`.
        calibration: as in `export`.
        measured: measures the speed of the last graph that was written; None for no speed.
        **more: as in `export`.
    """
    require_packages(options)

    def write(checkpoint: Checkpoint, run: Run) -> Checkpoint:
        rows = None
        request = calibration or CalibrationRequest()
        if options.precision == "int8" or request.source != "default":
            run.progress("reading the rows", 0, None)
            rows = _rows(checkpoint, request, options)
        return _write(checkpoint, run, options, rows, measured)

    return transform(model, output, [], load=_load, write=write, **more)


_TITLES = {"onnx": "ONNX", "openvino": "OpenVINO"}


def require_packages(options: ExportOptions) -> None:
    """Raises an ExtraError if a package that writes or runs the graph is not installed."""
    for name in options.packages:
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise ExtraError(
                f"Exporting to {_TITLES[options.format]} needs {name}: pip install 'collab[{options.extra}]'."
            ) from error


def _rows(checkpoint: Checkpoint, request: CalibrationRequest, options: ExportOptions) -> Rows | None:
    """The rows to measure ranges and agreement on; None for inputs other than text without data."""
    model, source = checkpoint.model, request.source
    needed = options.format == "openvino" and options.precision == "int8" and not writes(model)
    if source == "default" and input_kind(model) == "text":
        source = "synthetic"
        if needed:
            logger.warning(
                "The ranges of activations are measured on random words. Text such as the model will read gives a "
                "more faithful graph (--calibration)."
            )
    if source in ("default", "none"):
        if needed:
            raise ConfigurationError(
                f"int8 for OpenVINO measures the ranges of activations: give {input_kind(model)} with --calibration "
                "(calibration=)."
            )
        return None
    return rows_of(
        model,
        checkpoint.processor,
        source,
        samples=request.options.samples,
        held_out=lambda count: request.options.period,
        max_length=request.options.max_length,
        seed=request.options.seed,
    )


def _load(source: Source, options: LoadOptions) -> Checkpoint:
    loaded = load_source(source, options)
    check_exportable(loaded.model)
    if loaded.missing:
        logger.warning("Not in the checkpoint, so initialized at random: %s.", ", ".join(loaded.missing))
    loaded.model.float()
    return loaded


def _write(
    checkpoint: Checkpoint,
    run: Run,
    options: ExportOptions,
    rows: Rows | None,
    measured: Measured | None,
) -> Checkpoint:
    """Writes the graph, config, report, card and the other files of the model."""
    # At once: OpenVINO's graph beside the ONNX graph that it is made of, or that, a copy of it, and the one in int8.
    each = {("onnx", "float32"): 4, ("onnx", "int8"): 9}.get((options.format, options.precision), 8)
    check_space(run.output, each * count_parameters(checkpoint.model))
    name = run.output.name
    with staged(run.output, run.save_options.overwrite) as folder:
        write_config(checkpoint.model, folder)
        carry_over(checkpoint, folder)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            written, export = _write_graph(checkpoint, folder, Path(scratch), options, rows, run)
            exported = checkpoint.then(export)
            speed = None if measured is None or export.cache else measured(written, checkpoint.model, run)
            if speed is not None:
                exported = exported.then(speed)
        history = checkpoint.history.then(exported.steps, command=run.save_options.command)
        write_history(folder, history)
        card = with_sections(_card(checkpoint, export, name, run.save_options), exported.steps, name)
        (folder / CARD_FILE).write_text(card, encoding="utf-8")
    logger.info("Wrote %s.", run.output)
    return replace(exported, history=history)


def _write_graph(
    checkpoint: Checkpoint, folder: Path, scratch: Path, options: ExportOptions, rows: Rows | None, run: Run
) -> tuple[Written, Export]:
    """Writes the graphs, and in int8 for onnxruntime a second one of each, and compares them with the model.

    Returns the last of the graphs, and the report.
    """
    model = checkpoint.model
    run.progress("tracing, and checking against PyTorch", 0, None)
    graphs = graphs_of(model)
    batches = None
    if not writes(model):
        batches = of_one_length(model, checkpoint.processor, [] if rows is None else rows.train)
    written, opset = write_graphs(graphs, folder, scratch, options, batches)
    checks = {each.file.name: (check_graph if each.exact else compare_graph)(each.graph, each.file) for each in written}
    agreed: dict[str, float] | None = None
    by_source: dict[str, dict[str, float]] = {}
    if rows is not None:
        run.progress("comparing with the model", 0, None)
        agreed, by_source = _agreement(checkpoint, [each.file for each in written[-len(graphs) :]], rows)
    inputs, outputs = (
        list(dict.fromkeys(name for graph in graphs for name in getattr(graph, names)))
        for names in ("inputs", "outputs")
    )
    return written[-1], Export(
        format=options.format,
        precision=options.precision,
        opset=opset,
        inputs=[name for name in inputs if not name.startswith(PAST)],
        outputs=[name for name in outputs if not name.startswith(PRESENT)],
        cache=[name.removeprefix(PAST) for name in inputs if name.startswith(PAST)],
        verification={name: check.to_dict() for name, check in checks.items()},
        calibration=None if rows is None else rows.summary,
        agreement=agreed,
        agreement_by_source=by_source,
        bytes={each.file.name: sum(path.stat().st_size for path in graph_parts(each.file)) for each in written},
        model=checkpoint.name,
        random=checkpoint.missing,
        versions=installed_versions(*options.packages),
    )


def _beside_float32(written: Written, model: PreTrainedModel, run: Run) -> Speed | None:
    """How many times as fast as in float32 a graph is; None for a graph in float32."""
    if written.exact:
        return None
    run.progress("measuring speed", 0, None)
    graph = open_graph(written.file)
    measured = measure_graph_speed(graph, open_graph(written.plain, graph.runtime), model)
    if measured.high < 1:
        logger.warning(
            "In %s the graph is slower than in float32 on this processor, which may lack fast instructions for it "
            "(VNNI or AMX for int8). Measure it where it will run, with collab bench%s.",
            graph.precision,
            ". Without such instructions onnxruntime gains more (--format onnx --int8)"
            if graph.runtime == "openvino"
            else "",
        )
    return measured


def _agreement(
    checkpoint: Checkpoint, files: list[Path], rows: Rows
) -> tuple[dict[str, float] | None, dict[str, dict[str, float]]]:
    """The agreement of graphs, an encoder's before its decoder's, with the model on held-out rows; also by source."""
    model = checkpoint.model
    held_out = [
        (batch, source)
        for source, part in rows.held_out.items()
        for batch in of_one_length(model, checkpoint.processor, part)
    ]
    *encoders, session = (open_graph(file) for file in files)
    return agreement_by_source(
        model,
        module_of(model, session, *encoders),
        [with_targets(model, batch) for batch, _ in held_out],
        [source for _, source in held_out] if len(rows.held_out) > 1 else (),
    )


def _card(checkpoint: Checkpoint, export: Export, name: str, options: SaveOptions) -> str:
    """The card, without its section."""
    original = fitting(source_metadata(checkpoint.folder), checkpoint.model, checkpoint.folder)
    base_model, history = base_model_of(checkpoint, options), checkpoint.history
    source = base_model or (Path(history.source).name if history.source else None)
    return render_card(
        "writing" if export.cache else export.format,
        original,
        {
            "library_name": export.format,
            "tags": list(dict.fromkeys([*original.get("tags", []), export.format])),
            **({} if base_model is None else {"base_model": base_model}),
        },
        title=name,
        original=f"`{source}`" if source else "A model",
        done=history.done,
        kind=input_kind(checkpoint.model),
        any_length=has_length(checkpoint.model),
        pooling=pooling_of(checkpoint.model, checkpoint.folder),
        file=next(reversed(export.bytes)),
        inputs=export.inputs,
        outputs=export.outputs,
        settings=precision_settings(export.precision),
        openvino=export.format == "openvino",
        **(_writing(checkpoint.model, export) if export.cache else {}),
    )


def _writing(model: Any, export: Export) -> dict[str, Any]:
    """What a card says of a model that writes text."""
    encoder, generation = has_decoder(model), model.generation_config
    ends = generation.eos_token_id if generation.eos_token_id is not None else []
    return {
        "encoder": encoder,
        "files": list(export.bytes)[-2:] if encoder else list(export.bytes)[-1:],
        "start": generation.decoder_start_token_id,
        "steps": min(50, longest_target(model) // 2),
        "ends": ends if isinstance(ends, list) else [ends],
    }


def load_exported(folder: str | Path) -> Checkpoint:
    """Reads a folder that `collab export` wrote: its graph as a model of the class that it was written from.

    The model is called with the same tensors by name, and runs in onnxruntime or OpenVINO. Of one that writes text,
    ``generate`` does what it does with the model in PyTorch: greedily, with beams or samples, with forced tokens.

    Args:
        folder: the folder, or a graph in it.

    Raises:
        CheckpointError: if there is no graph, or it is damaged.
        ExtraError: if its runtime is not installed.
    """
    graph = find_graph(str(folder))
    if graph is None:
        raise CheckpointError(f"{folder} holds no graph. Give a folder that collab export wrote.")
    return load_graph(*graph)
