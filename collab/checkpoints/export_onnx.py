"""Exports a model in a folder as an ONNX graph into another folder (`collab export`)."""

from __future__ import annotations

import importlib
import logging
import shutil
from importlib.metadata import version
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from ..errors import ExtraError
from ..io.card import CARD_FILE, INHERITED, render_card, source_metadata
from ..io.history import REPORT_FILE, Step, append, read_report, table
from ..io.load import load
from ..io.options import LoadOptions, Progress, SaveOptions, no_progress
from ..io.report import installed_versions
from ..io.staging import check_output, check_space, staged
from ..io.write import carry_over
from ..models.layers import count_parameters
from ..onnx.check import check_graph, compare_graph
from ..onnx.graph import Graph, write_graph
from ..onnx.quantize import quantize
from ..onnx.samples import check_exportable

logger = logging.getLogger(__name__)

GRAPH_FILE = "model.onnx"
INT8_FILE = "model_quantized.onnx"
_PACKAGES = ("onnx", "onnxruntime", "onnxscript")


def export_onnx(
    model: str,
    output: str | Path,
    *,
    int8: bool = False,
    load_options: LoadOptions | None = None,
    save_options: SaveOptions | None = None,
    progress: Progress = no_progress,
) -> Step:
    """Writes a model as an ONNX graph into a folder that appears whole or not at all.

    The graph is in float32, takes any batch size and length, and is checked against PyTorch before it is put in place.

    Args:
        model: folder or Hub id of an original or a converted model.
        output: folder to write.
        int8: also write a graph with int8 weights.
        load_options: how to read the model.
        save_options: how to write the result.
        progress: called before every phase.

    Returns:
        The step added to report and card; its `record` has ``verification`` (largest and mean difference from PyTorch,
        shapes of the inputs), ``int8`` (the same for the int8 graph) and ``bytes`` of both graphs.

    Raises:
        ExtraError: if onnx, onnxruntime or onnxscript is not installed.
        CheckpointError: if the model cannot be read.
        UnsupportedArchitectureError: if the model is not one forward pass over text or images, or cannot be traced.
        OutputError: if the folder cannot be written; nothing is left behind.
        VerificationError: if the graph does not compute what the model computes; nothing is left behind.
    """
    save_options = save_options or SaveOptions()
    output = Path(output).expanduser()
    _require_extra()
    progress("loading the model", 0, None)
    loaded = load(model, load_options)
    check_output(output, loaded.source.folder, save_options.overwrite)
    check_exportable(loaded.model)
    if loaded.missing:
        logger.warning("Not in the checkpoint, so initialized at random: %s.", ", ".join(loaded.missing))
    network = loaded.model
    network.float()
    size = 4 * count_parameters(network)
    check_space(output, size + (size // 3 if int8 else 0))
    with staged(output, save_options.overwrite) as folder:
        _write_config(network, folder)
        carry_over(loaded.source.folder, folder, loaded.trust_remote_code)
        progress("tracing, and checking against PyTorch", 0, None)
        record = _write_graphs(network, folder, int8)
        record |= {"model": model, "command": save_options.command, "random": loaded.missing, "versions": _versions()}
        if (loaded.source.folder / REPORT_FILE).is_file():
            shutil.copyfile(loaded.source.folder / REPORT_FILE, folder / REPORT_FILE)
        onnx_card(folder, output.name, loaded.source.folder, tuple(record["inputs"]), tuple(record["outputs"]))
        step = export_step(record)
        append(folder, step, name=output.name)
    logger.info("Wrote %s.", output)
    return step


def _require_extra() -> None:
    for name in _PACKAGES:
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise ExtraError(f"Exporting to ONNX needs {name}: pip install 'collab[onnx]'.") from error


def _write_config(network: PreTrainedModel, folder: Path) -> None:
    """Writes the model's config without auto_map, so that tokenizers do not ask to trust remote code."""
    if hasattr(network.config, "auto_map"):
        del network.config.auto_map
    network.config.architectures = [type(network).__name__]
    network.config.save_pretrained(folder)


def _write_graphs(network: PreTrainedModel, folder: Path, int8: bool) -> dict[str, Any]:
    """Writes the graph, and optionally the one with int8 weights, and compares both with the model."""
    graph = Graph(network)
    file, small = folder / GRAPH_FILE, folder / INT8_FILE
    opset = write_graph(graph, file)
    record: dict[str, Any] = {
        "step": "export",
        "format": "onnx",
        "opset": opset,
        "inputs": list(graph.inputs),
        "outputs": list(graph.outputs),
        "verification": check_graph(graph, file).to_dict(),
        "int8": None,
        "bytes": {GRAPH_FILE: _bytes(file)},
    }
    if int8:
        quantize(file, small)
        record["int8"] = compare_graph(graph, small).to_dict()
        record["bytes"][INT8_FILE] = _bytes(small)
    return record


def _bytes(file: Path) -> int:
    """Size of a graph and its separate weights file."""
    return sum(path.stat().st_size for path in file.parent.glob(f"{file.name}*"))


def _versions() -> dict[str, str]:
    return installed_versions() | {name: version(name) for name in _PACKAGES}


def onnx_card(folder: Path, name: str, source: Path, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> None:
    """Writes README.md, to which the step from `export_step` is appended.

    Args:
        folder: folder of the export.
        name: title of the card.
        source: folder of the model, whose license, language and base model are inherited.
        inputs: inputs of the graph.
        outputs: outputs of the graph.
    """
    original = source_metadata(source)
    report = read_report(folder)
    layers = report.get("layers") or []
    text = render_card(
        "onnx",
        {
            "library_name": "onnx",
            "tags": list(dict.fromkeys([*original.get("tags", []), "onnx"])),
            **{key: original[key] for key in ("base_model", *INHERITED) if key in original},
        },
        title=name,
        forms=" and ".join(sorted({layer["form"] for layer in layers})),
        ratio=report["parameters"]["query_key"]["ratio"] if layers else None,
        images="pixel_values" in inputs,
        inputs=inputs,
        outputs=outputs,
    )
    (folder / CARD_FILE).write_text(text, encoding="utf-8")


def export_step(record: dict[str, Any]) -> Step:
    """An export as a section of the card."""
    check, sizes = record["verification"], record["bytes"]
    shapes = ", ".join("×".join(map(str, shape)) for shape in check["shapes"])
    rows = [
        [
            "`model.onnx`",
            f"{sizes['model.onnx'] / 1e6:.2f} MB",
            f"{check['largest_difference']:.1e}",
            f"{check['mean_difference']:.1e}",
            f"{check['lowest_cosine']:.6f}",
        ]
    ]
    if record["int8"]:
        rows.append(
            [
                "`model_quantized.onnx`",
                f"{sizes['model_quantized.onnx'] / 1e6:.2f} MB",
                *(f"{record['int8'][key]:.4f}" for key in ("largest_difference", "mean_difference", "lowest_cosine")),
            ]
        )
    text = (
        f"ONNX opset {record['opset']}. Compared with PyTorch in onnxruntime {record['versions']['onnxruntime']} on "
        f"random inputs of shapes {shapes}, padded and not; the differences are over all outputs without padding:\n\n"
    )
    headings = ["", "size", "largest difference", "mean difference", "cosine"]
    return Step("ONNX", text + table(headings, rows), record)
