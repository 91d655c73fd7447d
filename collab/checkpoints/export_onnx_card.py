"""The card of a folder with an ONNX graph: how to run it, and what it came from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from huggingface_hub import ModelCardData

from ..io.card import INHERITED, source_metadata
from ..io.history import CARD_FILE, Step, read_report, table

_TEXT = """\
tokenizer = AutoTokenizer.from_pretrained("FOLDER")
session = onnxruntime.InferenceSession("FOLDER/model.onnx")
batch = tokenizer(["a sentence", "another"], padding=True, truncation=True, return_tensors="np")
names = {one.name for one in session.get_inputs()}
found = session.run(None, {name: value.astype("int64") for name, value in batch.items() if name in names})"""

_IMAGES = """\
processor = AutoImageProcessor.from_pretrained("FOLDER")
session = onnxruntime.InferenceSession("FOLDER/model.onnx")
found = session.run(None, dict(processor(images, return_tensors="np")))"""


def write_card(folder: Path, name: str, source: Path, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> None:
    """Writes README.md, to which the step of the export is appended.

    Args:
        folder: the export.
        name: its title.
        source: folder of the model, whose license, language and original are inherited.
        inputs: of the graph.
        outputs: of the graph.
    """
    original = source_metadata(source)
    data = ModelCardData(
        library_name="onnx",
        tags=list(dict.fromkeys([*original.get("tags", []), "onnx"])),
        **{key: original[key] for key in ("base_model", *INHERITED) if key in original},
    )
    images = "pixel_values" in inputs
    loader = "AutoImageProcessor" if images else "AutoTokenizer"
    parts = [
        f"# {name}, ONNX",
        _origin(folder),
        "## Running",
        f"```python\nimport onnxruntime\nfrom transformers import {loader}\n\n{_IMAGES if images else _TEXT}\n```",
        f"Inputs: {', '.join(inputs)}, of any batch size{'' if images else ' and length'}. "
        f"Outputs, in this order: {', '.join(outputs)}.",
    ]
    text = "\n\n".join(part for part in parts if part)
    (folder / CARD_FILE).write_text(f"---\n{data.to_yaml()}\n---\n\n{text}\n", encoding="utf-8")


def _origin(folder: Path) -> str:
    """What a converted model was, from its report."""
    report = read_report(folder)
    if not report.get("layers"):
        return ""
    form = " and ".join(sorted({layer["form"] for layer in report["layers"]}))
    ratio = report["parameters"]["query_key"]["ratio"]
    return (
        f"A model with collaborative attention ({form} form, {ratio:.3f} of the original's query/key parameters), "
        "converted by collab; `collab_report.json` says how."
    )


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
        f"ONNX operators {record['opset']}. Run by onnxruntime {record['versions']['onnxruntime']} beside PyTorch on "
        f"random inputs of shapes {shapes}, padded and not; the differences are of all outputs, padding left out:\n\n"
    )
    headings = ["", "size", "largest difference", "mean difference", "cosine"]
    return Step("ONNX", text + table(headings, rows), record)
