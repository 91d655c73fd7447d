"""Numbers at the edge: what the report of a conversion says, and whether it is true.

Tiny random BERTs at rank 8 of 32, in every form. The error that a report gives each layer is compared with that of the
weights in the converted model, computed anew in float64. Then rows that say little, with two steps of refinement.

    python benchmarks/edge_numbers.py

Writes results/edge_numbers.json and .md.
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import torch
import transformers
from common import machine, markdown, write
from test_numbers import config, model_with, numbers, true_errors
from tiny import BERT, save_with_tokenizer, tiny_model
from torch import Tensor
from transformers import PreTrainedModel

import collab
from collab.decomposition import FORMS

ROWS = {
    "one token": ["a"] * 8,
    "the same row": ["a b c"] * 8,
    "padding only": ["[PAD] [PAD]"] * 8,
    "two rows of one token": ["a", "b"],
    "a special token": ["[CLS]"] * 4,
    "empty rows": [""] * 8,
}


def inputs() -> Iterator[tuple[str, PreTrainedModel]]:
    """Models whose queries and keys are at the edge of what numbers can be."""
    yield "float32", tiny_model(BERT)
    yield "float16", tiny_model(BERT).half()
    yield "bfloat16", tiny_model(BERT).bfloat16()

    def scaled(scale: float) -> PreTrainedModel:
        return model_with(lambda name, tensor: tensor.mul_(scale))

    def cut(left: int) -> Callable[[str, Tensor], None]:
        return lambda name, tensor: tensor[left:].zero_()  # the first rows belong to the first head

    for scale in (1e-6, 1e6):
        yield f"queries and keys x {scale:g}", scaled(scale)
    for scale in (1e4, 1e6):
        yield (
            f"the same x {scale:g} in float16",
            model_with(lambda name, tensor, by=scale: tensor.copy_((tensor * by).clamp(-6e4, 6e4))).half(),
        )
    for left in (0, 1, 3):
        yield f"{left} dimensions left", model_with(cut(left))


def converted(model: PreTrainedModel, form: str) -> dict[str, Any]:
    """What the report of a conversion says, and what is true; or why it is refused."""
    try:
        conversion = collab.convert(model, config(form))
    except collab.CollabError as error:
        return {"refused": str(error)}
    layers = conversion.report.layers
    return {
        "errors": [layer.error for layer in layers],
        "true": true_errors(model, conversion),
        "finite": all(map(math.isfinite, numbers(json.loads(conversion.report.to_json())))),
    }


def calibrated(folder: Path, rows: list[str]) -> dict[str, Any]:
    """What the report of a conversion on some rows says of its first layer; or why it is refused."""
    loaded = collab.load(str(folder))
    try:
        calibration = collab.calibrate(collab.Checkpoint(loaded.model, loaded.tokenizer), rows)
        conversion = collab.convert(
            loaded.model, collab.ConversionConfig(rank=8, compare=False, refine=2), calibration=calibration
        )
    except collab.CollabError as error:
        return {"refused": str(error)}
    layer = conversion.report.layers[0]
    names = ("error", "score_error", "held_out_error", "output_error_before", "output_error_after")
    return {
        "first layer": {name: getattr(layer, name) for name in names},
        "finite": all(map(math.isfinite, numbers(json.loads(conversion.report.to_json())))),
    }


def main() -> None:
    """Runs everything."""
    torch.set_num_threads(1)
    transformers.logging.disable_progress_bar()
    edges = [{"input": name, "form": form, **converted(model, form)} for name, model in inputs() for form in FORMS]
    rows = []
    for record in edges:
        if "refused" in record:
            rows.append([record["input"], record["form"], "refused", record["refused"], "yes"])
            continue
        off = max(abs(said - true) for said, true in zip(record["errors"], record["true"], strict=True))
        half = "float16" in record["input"]
        true = record["finite"] and off < (2e-2 if half else 1e-4)
        rows.append(
            [record["input"], record["form"], f"{record['errors'][0]:.4f}", f"{off:.0e}", "yes" if true else "no"]
        )
    table = markdown(["input", "form", "error of the first layer", "off at most, or why refused", "true"], rows)
    with tempfile.TemporaryDirectory(prefix="collab-numbers.") as top:
        folder = save_with_tokenizer(tiny_model(BERT), Path(top) / "model")
        little = [{"rows": name, **calibrated(folder, texts)} for name, texts in ROWS.items()]
    rows = []
    for record in little:
        said = record.get("refused") or ", ".join(
            f"{name.replace('_', ' ')} {value:.2e}" if isinstance(value, float) else f"{name.replace('_', ' ')} {value}"
            for name, value in record["first layer"].items()
        )
        rows.append([record["rows"], said, "yes" if record.get("finite", True) else "no"])
    second = markdown(["rows", "what the report says of the first layer", "finite"], rows)
    write("edge_numbers", {"machine": machine(), "weights": edges, "rows": little}, f"{table}\n\n{second}")


if __name__ == "__main__":
    main()
