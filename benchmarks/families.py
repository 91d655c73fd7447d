"""Every family on tiny random models, and five encoders in the shapes of real checkpoints: exact, exported, in ONNX.

    python benchmarks/families.py            # everything
    python benchmarks/families.py --tiny     # the matrix of families alone

Writes results/families.json and .md. Rows are kept as they finish, and a run that was stopped goes on; delete the JSON
file to check everything again. About fifteen minutes on one core.

The matrix runs the tiny models of `tests/tiny.py`, every class of a family in every form, and writes the differences
down. No checkpoint of the real shapes is at hand, so their weights are random: conversions at half of the
query/key parameters are by the weights alone, and say nothing about what is lost in a trained model.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from common import kept, machine, markdown, write
from transformers import PreTrainedModel

import collab
from collab.decomposition import FORMS
from collab.io.load import load
from collab.modeling.collab_model import auto_classes
from collab.models.families import Family, families
from collab.models.inputs import has_decoder, probe_inputs
from collab.models.layers import attention_layers

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from reload import outputs_without_collab
from tiny import ROWS, Row, converted, full_rank, largest_difference, of_seen, random_model, tensors

Measured = dict[str, Any]


@dataclass(frozen=True)
class Shape:
    """A model class and the config of a real checkpoint."""

    name: str
    model: type[PreTrainedModel]
    values: dict[str, Any]

    def random(self) -> PreTrainedModel:
        """A model with random weights, whose scores have a standard deviation of about one where its states have."""
        torch.manual_seed(0)
        model = self.model(self.model.config_class(**self.values)).eval()  # type: ignore[misc]
        for layer in attention_layers(model):
            scaled = layer.collaborative.scaled
            for role in ("query", "key"):
                projection = layer.projection(role)
                width = projection.out_features // layer.total
                with torch.no_grad():
                    projection.weight.normal_(0, projection.in_features**-0.5 * (1 if scaled else width**-0.25))
                    if projection.bias is not None:
                        projection.bias.normal_(0, 0.5)
        return model


_BASE = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12}
SHAPES = (
    Shape("clip-vit-base-patch32: vision", transformers.CLIPVisionModel, _BASE | {"image_size": 224, "patch_size": 32}),
    Shape(
        "siglip-base-patch16-224: vision",
        transformers.SiglipVisionModel,
        _BASE | {"image_size": 224, "patch_size": 16},
    ),
    Shape(
        "dinov2-base",
        transformers.Dinov2Model,
        {name: value for name, value in _BASE.items() if name != "intermediate_size"}
        | {"image_size": 518, "patch_size": 14},
    ),
    Shape(
        "whisper-base: encoder",
        transformers.models.whisper.modeling_whisper.WhisperEncoder,
        {"d_model": 512, "encoder_layers": 6, "encoder_attention_heads": 8, "encoder_ffn_dim": 2048},
    ),
    Shape(
        "t5-base: encoder",
        transformers.T5EncoderModel,
        {"d_model": 768, "d_kv": 64, "d_ff": 3072, "num_layers": 12, "num_heads": 12, "vocab_size": 32128},
    ),
)


def measure_shape(shape: Shape, params: float | None) -> Measured:
    """One model converted from folder to folder, loaded without collab, and traced to ONNX.

    Args:
        shape: the model.
        params: fraction of the query/key parameters to keep; None for full rank.
    """
    native = shape.random()
    inputs = probe_inputs(native)
    with torch.no_grad():
        expected = of_seen(native(**inputs), inputs)
    if params is None:
        config = collab.ConversionConfig(rank=full_rank(native), form="cp", compare=False)
    else:
        config = collab.ConversionConfig(params=params, form="cp", compare=False)
    taken: Measured = {}
    with tempfile.TemporaryDirectory(prefix="collab-families.") as top:
        folder, out = Path(top), Path(top) / "out"
        native.save_pretrained(folder / "in")
        report = timed(
            taken,
            "convert",
            lambda: (
                collab.checkpoints.convert(
                    str(folder / "in"), out, config, calibration=collab.CalibrationRequest("none")
                ).report
            ),
        )
        model = load(str(out)).model.eval()
        with torch.no_grad():
            actual = of_seen(model(**inputs), inputs)
        job = {"folder": out, "auto_class": "AutoModel", "inputs": inputs}
        (elsewhere,) = timed(taken, "reload", lambda: outputs_without_collab([job], folder))
        step = timed(taken, "onnx", lambda: collab.checkpoints.export(str(out), folder / "onnx"))
        checks = step.report.verification.values()  # of every graph
    return {
        "layers": len(report.layers),
        "rank": report.layers[0].rank,
        "full_rank": report.layers[0].full_rank,
        "query_key_ratio": report.query_key.ratio,
        "largest_entry": max(float(value.abs().max()) for value in expected.values()),
        "difference": largest_difference(expected, actual),
        "cosine": cosine(expected, actual),
        "reload_difference": largest_difference(actual, of_seen(elsewhere, inputs)),
        "onnx_difference": max(check["largest_difference"] for check in checks),
        "onnx_shapes": next(iter(checks))["shapes"],
        "seconds": taken,
    }


def cosine(first: dict[str, Any], second: dict[str, Any]) -> float:
    """Mean cosine between the last hidden states of two outputs."""
    states = (output["last_hidden_state"].flatten(0, -2) for output in (first, second))
    return float(torch.cosine_similarity(*states, dim=-1).mean())


def timed(taken: Measured, name: str, call: Callable[[], Any]) -> Any:
    """Calls a function and notes its seconds."""
    start = time.perf_counter()
    result = call()
    taken[name] = time.perf_counter() - start
    return result


@torch.no_grad()
def measure_family(row: Row) -> Measured:
    """Every class of a family in every form: the largest differences of each check."""
    start = time.perf_counter()
    family, exact, jobs, expected = row.family, [], [], []
    loaders = {model: name for name, models in auto_classes(family.module).items() for model in models}
    with tempfile.TemporaryDirectory(prefix="collab-families.") as top:
        for model_class in family.models:
            native = random_model(model_class.native_class(), row.config())
            inputs = probe_inputs(native)
            for form in FORMS:
                model = converted(native, full_rank(native), form)
                folder = Path(top) / f"{model_class.__name__}-{form}"
                model.save_pretrained(folder)
                auto_class = loaders.get(model_class, "AutoModel")
                jobs.append({"folder": folder, "auto_class": auto_class, "inputs": inputs})
                expected.append(native(**inputs))
                for kernel in ("eager", "sdpa"):
                    model.set_attn_implementation(kernel)
                    exact.append(largest_difference(*(of_seen(each(**inputs), inputs) for each in (native, model))))
        reloaded = [
            largest_difference(of_seen(wanted, job["inputs"]), of_seen(actual, job["inputs"]))
            for job, actual, wanted in zip(jobs, outputs_without_collab(jobs, Path(top)), expected, strict=True)
        ]
    return {
        "classes": [model.native_class().__name__ for model in family.models],
        "exact": max(exact),
        "reload": max(reloaded),
        "narrow": {str(dtype).removeprefix("torch."): narrow(row, dtype) for dtype in (torch.bfloat16, torch.float16)},
        "padding": padding(row, family),
        "seconds": time.perf_counter() - start,
    }


def narrow(row: Row, dtype: torch.dtype) -> dict[str, float]:
    """How far a model in a narrow dtype is from its original in float32, before and after conversion at full rank."""
    native = random_model(row.family.base.native_class(), row.config())
    expected = of_seen(native(**probe_inputs(native)), probe_inputs(native))
    before = native.to(dtype)
    inputs = probe_inputs(before)
    models = {"native": before, "converted": converted(before, full_rank(before))}
    if {parameter.dtype for parameter in models["converted"].parameters()} != {dtype}:
        raise SystemExit(f"{row.model_type} does not stay in {dtype}.")
    outputs = {name: of_seen(model(**inputs), inputs) for name, model in models.items()}
    return {
        name: largest_difference(expected, {key: value.float() for key, value in tensors(output).items()})
        for name, output in outputs.items()
    }


def padding(row: Row, family: Family) -> float | None:
    """What padding changes in the states of real tokens, in any form and kernel; None for models that take no text.

    In an encoder with a decoder, what padding of the source changes in the decoder's states.
    """
    if family.base.main_input_name != "input_ids":
        return None
    tokens = torch.randint(2, 60, (1, 9), generator=torch.Generator().manual_seed(0))
    padded = torch.cat([tokens, torch.full((1, 4), 1)], dim=1)
    mask = (torch.arange(13) < 9).long().unsqueeze(0)  # (1, 13)
    written = {"decoder_input_ids": tokens} if has_decoder(family.base) else {}
    differences = []
    for form in FORMS:
        model = converted(random_model(family.base.native_class(), row.config()), 13, form)
        for kernel in ("eager", "sdpa"):
            model.set_attn_implementation(kernel)
            alone = model(input_ids=tokens, attention_mask=torch.ones_like(tokens), **written).last_hidden_state
            beside = model(input_ids=padded, attention_mask=mask, **written).last_hidden_state[:, :9]
            differences.append(float((alone - beside).abs().max()))
    return max(differences)


def table(result: Measured) -> str:
    """The matrix of families, then the real shapes."""
    cells = [
        [
            f"`{name}`",
            str(len(Path(str(families()[name].module.__file__)).read_text(encoding="utf-8").splitlines())),
            str(len(row["classes"])),
            f"{row['exact']:.0e}",
            f"{row['reload']:.0e}",
            *(f"{narrow['converted']:.0e} ({narrow['native']:.0e})" for narrow in row["narrow"].values()),
            "" if row["padding"] is None else f"{row['padding']:.0e}",
        ]
        for name, row in sorted(result["families"].items())
    ]
    headings = ["family", "lines", "classes", "full rank", "without collab", "bfloat16", "float16", "padding"]
    parts = ["### Families", markdown(headings, cells)]
    cells = [
        [
            row["model"],
            f"{row['layers']}",
            f"{row['rank']} of {row['full_rank']}",
            f"{row['query_key_ratio']:.3f}",
            f"{row['difference']:.1e}",
            f"{row['cosine']:.4f}",
            f"{row['reload_difference']:.1e}",
            f"{row['onnx_difference']:.1e}",
        ]
        for row in result["shapes"]
    ]
    headings = ["", "layers", "R", "query/key left", "difference", "cosine", "without collab", "ONNX"]
    return "\n\n".join([*parts, "### Real shapes", markdown(headings, cells)])


def main() -> None:
    """Runs what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="The matrix of families alone.")
    wanted = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    result = {"machine": machine(), "families": {}, "shapes": []} | kept("families")
    for row in ROWS:
        if row.model_type not in result["families"]:
            result["families"][row.model_type] = measure_family(row)
            write("families", result, table(result))
    for shape in () if wanted.tiny else SHAPES:
        for params in (None, 0.5):
            setting = {"model": shape.name, "params": params}
            if not any(setting.items() <= row.items() for row in result["shapes"]):
                result["shapes"].append(setting | measure_shape(shape, params))
                write("families", result, table(result))


if __name__ == "__main__":
    main()
