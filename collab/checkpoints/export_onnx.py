"""Exports a model in a folder as an ONNX graph into another folder (`collab export`)."""

from __future__ import annotations

import importlib
import logging
from dataclasses import replace
from pathlib import Path
from typing import Unpack

from transformers import PreTrainedModel

from ..errors import ExtraError
from ..io.card import CARD_FILE, render_card, source_metadata, with_sections
from ..io.checkpoint import Checkpoint
from ..io.history import write_history
from ..io.load import load_source
from ..io.options import LoadOptions, TransformOptions
from ..io.read import Source
from ..io.staging import check_space, staged
from ..io.write import carry_over
from ..models.layers import count_parameters
from ..onnx.check import check_graph, compare_graph
from ..onnx.graph import Graph, write_graph
from ..onnx.quantize import quantize
from ..onnx.samples import check_exportable
from ..steps.export import Export
from ..steps.step import installed_versions
from .transform import Run, transform

logger = logging.getLogger(__name__)

GRAPH_FILE = "model.onnx"
INT8_FILE = "model_quantized.onnx"
_PACKAGES = ("onnx", "onnxruntime", "onnxscript")


def export_onnx(model: str, output: str | Path, *, int8: bool = False, **more: Unpack[TransformOptions]) -> Checkpoint:
    """Writes a model as an ONNX graph into a folder that appears whole or not at all.

    The graph is in float32, takes any batch size and length, and is checked against PyTorch before it is put in place.

    Args:
        model: folder or Hub id of an original or a converted model.
        output: folder to write.
        int8: also write a graph with int8 weights.
        **more: see [`TransformOptions`][collab.TransformOptions].

    Returns:
        The model, with an `Export` as its report.

    Raises:
        ExtraError: if onnx, onnxruntime or onnxscript is not installed.
        CheckpointError: if the model cannot be read.
        UnsupportedArchitectureError: if the model is not one forward pass over text or images, or cannot be traced.
        OutputError: if the folder cannot be written; nothing is left behind.
        VerificationError: if the graph does not compute what the model computes; nothing is left behind.
    """
    _require_extra()

    def write(checkpoint: Checkpoint, run: Run) -> Checkpoint:
        return _write(checkpoint, run, int8)

    return transform(model, output, [], load=_load, write=write, **more)


def _require_extra() -> None:
    for name in _PACKAGES:
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise ExtraError(f"Exporting to ONNX needs {name}: pip install 'collab[onnx]'.") from error


def _load(source: Source, options: LoadOptions) -> Checkpoint:
    loaded = load_source(source, options)
    check_exportable(loaded.model)
    if loaded.missing:
        logger.warning("Not in the checkpoint, so initialized at random: %s.", ", ".join(loaded.missing))
    loaded.model.float()
    return loaded


def _write(checkpoint: Checkpoint, run: Run, int8: bool) -> Checkpoint:
    """Writes graphs, config, report, card and the other files of the model."""
    size = 4 * count_parameters(checkpoint.model)
    check_space(run.output, size + (size // 3 if int8 else 0))
    name = run.output.name
    with staged(run.output, run.save_options.overwrite) as folder:
        _write_config(checkpoint.model, folder)
        carry_over(checkpoint, folder)
        run.progress("tracing, and checking against PyTorch", 0, None)
        exported = checkpoint.then(_write_graphs(checkpoint, folder, int8))
        history = checkpoint.history.then(exported.steps, command=run.save_options.command)
        write_history(folder, history)
        card = with_sections(_card(checkpoint, exported.report, name), exported.steps, name)
        (folder / CARD_FILE).write_text(card, encoding="utf-8")
    logger.info("Wrote %s.", run.output)
    return replace(exported, history=history)


def _write_config(network: PreTrainedModel, folder: Path) -> None:
    """Writes the model's config without auto_map, so that tokenizers do not ask to trust remote code."""
    if hasattr(network.config, "auto_map"):
        del network.config.auto_map
    network.config.architectures = [type(network).__name__]
    network.config.save_pretrained(folder)


def _write_graphs(checkpoint: Checkpoint, folder: Path, int8: bool) -> Export:
    """Writes the graph, and optionally the one with int8 weights, and compares both with the model."""
    graph = Graph(checkpoint.model)
    file, small = folder / GRAPH_FILE, folder / INT8_FILE
    opset = write_graph(graph, file)
    verification = check_graph(graph, file).to_dict()
    if int8:
        quantize(file, small)
    return Export(
        format="onnx",
        opset=opset,
        inputs=list(graph.inputs),
        outputs=list(graph.outputs),
        verification=verification,
        int8=compare_graph(graph, small).to_dict() if int8 else None,
        bytes={each.name: _bytes(each) for each in (file, small) if each.is_file()},
        model=checkpoint.name,
        random=checkpoint.missing,
        versions=installed_versions(*_PACKAGES),
    )


def _bytes(file: Path) -> int:
    """Size of a graph and its separate weights file."""
    return sum(path.stat().st_size for path in file.parent.glob(f"{file.name}*"))


def _card(checkpoint: Checkpoint, export: Export, name: str) -> str:
    """The card, without its section."""
    original, history = source_metadata(checkpoint.folder), checkpoint.history
    layers = history.layers
    return render_card(
        "onnx",
        original,
        {
            "library_name": "onnx",
            "tags": list(dict.fromkeys([*original.get("tags", []), "onnx"])),
            **{key: original[key] for key in ("base_model",) if key in original},
        },
        title=name,
        forms=" and ".join(sorted({layer["form"] for layer in layers})),
        ratio=history.report["parameters"]["query_key"]["ratio"] if layers else None,
        images="pixel_values" in export.inputs,
        inputs=export.inputs,
        outputs=export.outputs,
    )
