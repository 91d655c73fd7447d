"""Heads and towers served in int8: a classifier of SST-2 with its accuracy, and a vision tower with its agreement.

The demo checkpoint fine-tuned on SST-2 (see classifiers.py), as it is and compressed to half of its layers' arithmetic
(see compressed_classifier.py; not healed), in PyTorch and as graphs for onnxruntime and OpenVINO, int8 with the ranges
of activations measured on 1,536 training sentences: accuracy on the development set, the 95 % interval of its
difference from the same model's in float32 (paired bootstrap over sentences, 10,000 draws), and agreement with it.
The tower is CLIP's of ViT-B/32 with random weights, and its half, on images of random colours: the cosine of its pooled
states to the same model's in float32 and nothing about quality. Speed is beside the original's float32 graph in
onnxruntime, each graph in a process of its own.

    python benchmarks/serving_heads.py [--task sst2] [--part speed] [--rounds 15]

Writes results/serving_heads.json and .md; rows are kept, so that parts may be measured apart. Graphs are in
benchmarks/work/serving, and are written where they are missing.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from classifiers import Bench
from common import kept, machine, markdown, my_turn, write
from compressed_classifier import interval
from families import SHAPES
from PIL import Image
from serving import GRAPHS, RUNTIMES, WAYS, Way, speeds, way_of, ways

import collab
from collab.checkpoints.bench import file_bytes
from collab.data.batches import row_batches
from collab.data.features import image_features
from collab.evaluation.worker import load_any

MODELS = ("original", "half")
SIZES = {
    "sst2": {"1x32": [(1, 32)], "8x32": [(8, 32)], "8x128": [(8, 128)]},
    "tower": {"1 image": [(1, None)], "8 images": [(8, None)]},
}
TITLES = {"sst2": "SST-2", "tower": "CLIP's vision tower, random weights"}


def main() -> None:
    """Measures what was asked for, and keeps what was measured before."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", action="append", choices=list(SIZES))
    parser.add_argument("--part", action="append", choices=("quality", "speed"))
    parser.add_argument("--rounds", type=int, default=15)
    chosen = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    for task in chosen.task or SIZES:
        paths = classifiers() if task == "sst2" else towers()
        if "quality" in (chosen.part or ("quality",)):
            measure = accuracies if task == "sst2" else agreements
            for name in MODELS:
                keep(task, name, measure(paths[name]))
        if "speed" in (chosen.part or ("speed",)):
            baseline = paths["original"]["onnxruntime", "float32"]
            flat = [(name, way, path) for name in MODELS for way, path in paths[name].items()]
            fast = speeds([baseline, *(path for _, _, path in flat)], SIZES[task], chosen.rounds)[1:]
            for (name, way, _), speed in zip(flat, fast, strict=True):
                keep(task, name, {way: {"speed": speed}})


def classifiers() -> dict[str, dict[Way, str]]:
    """The classifier and its half, each in every runtime and precision."""
    bench = Bench("sst2")
    folder, half = Path(__file__).parent / "work" / "classifiers-sst2", GRAPHS / "sst2-half"
    if not half.is_dir():
        original = collab.load(str(folder), auto_class=bench.task.auto_class)
        moments = bench.calibrate("fixed size", 0)
        collab.save(collab.compress(original, collab.CompressionConfig(flops=0.5), moments), half)
    request = collab.CalibrationRequest(bench.train, collab.CalibrationOptions(2048, 128))
    sources = {"original": str(folder), "half": str(half)}
    return {name: ways(source, GRAPHS / f"sst2-{name}-graphs", request) for name, source in sources.items()}


def towers() -> dict[str, dict[Way, str]]:
    """The tower and its half, each in every runtime and precision."""
    shape = next(shape for shape in SHAPES if shape.model is transformers.CLIPVisionModel)
    sources = {name: GRAPHS / f"tower-{name}" for name in MODELS}
    images = [image(seed) for seed in range(96)]
    if not sources["half"].is_dir():
        model = shape.random()
        processor = transformers.CLIPImageProcessor()
        model.save_pretrained(sources["original"])
        processor.save_pretrained(sources["original"])
        original = collab.load(str(sources["original"]))
        moments = collab.calibrate(original, images)
        compressed = collab.compress(original, collab.CompressionConfig(flops=0.5), moments)
        collab.save(compressed, sources["half"])
    request = collab.CalibrationRequest(collab.Mixture({"colours": images}), collab.CalibrationOptions(96))
    return {name: ways(str(source), GRAPHS / f"tower-{name}-graphs", request) for name, source in sources.items()}


def image(seed: int) -> Image.Image:
    """Random colours that change slowly, 224 x 224."""
    colours = np.random.default_rng(seed).integers(0, 256, (7, 7, 3), dtype=np.uint8)
    return Image.fromarray(colours).resize((224, 224), Image.Resampling.BICUBIC)


def accuracies(paths: Mapping[Way, str]) -> dict[Way, dict[str, Any]]:
    """Accuracy of a classifier in every way, and its difference from PyTorch."""
    bench = Bench("sst2")
    labels = torch.tensor([int(feature["labels"]) for feature in bench.features])
    plain = bench.answers(load_any(paths["torch", "float32"]).model)
    reference = (plain.argmax(-1) == labels).numpy()
    measured = {}
    for way, path in paths.items():
        loaded = load_any(path)
        answers = bench.answers(loaded.model)
        correct = (answers.argmax(-1) == labels).numpy()
        measured[way] = {
            "accuracy": 100 * float(correct.mean()),
            "difference": 100 * float(correct.mean() - reference.mean()),
            "interval": interval(correct, reference),
            "agreement": 100 * float((answers.argmax(-1) == plain.argmax(-1)).float().mean()),
            "bytes": file_bytes(loaded),
        }
    return measured


@torch.no_grad()
def agreements(paths: Mapping[Way, str]) -> dict[Way, dict[str, Any]]:
    """Mean and lowest cosine of pooled states to the same in PyTorch, on images that it was not calibrated on."""
    own = collab.load(paths["torch", "float32"])
    features = image_features(own.model, own.processor, [image(seed) for seed in range(1000, 1064)])
    batches = row_batches(own.model, own.processor, features, 8)
    plain = torch.cat([own.model(**batch).pooler_output for batch in batches])
    measured = {}
    for way, path in paths.items():
        loaded = load_any(path)
        actual = torch.cat([loaded.model(**batch).pooler_output for batch in batches])
        cosines = torch.nn.functional.cosine_similarity(actual, plain)
        measured[way] = {
            "cosine": float(cosines.mean()),
            "lowest": float(cosines.min()),
            "bytes": file_bytes(loaded),
        }
    return measured


def keep(task: str, name: str, measured: Mapping[Way, dict[str, Any]]) -> None:
    """Adds measurements of a model to the results, in place of older ones of the same."""
    with my_turn("serving_heads"):
        known = {(row["task"], *way_of(row)): row for row in kept("serving_heads").get("rows", [])}
        for way, new in measured.items():
            row = known.setdefault((task, name, *way), {"task": task, "model": name})
            row |= {"runtime": way[0], "precision": way[1]} | new
        order = list(SIZES)
        rows = sorted(
            known.values(),
            key=lambda row: (order.index(row["task"]), MODELS.index(row["model"]), WAYS.index(way_of(row)[1:])),
        )
        write("serving_heads", {"machine": machine(), "rows": rows}, table(rows))


def table(rows: list[dict[str, Any]]) -> str:
    """A table for each task, of the rows that are complete."""
    parts = []
    for task, sizes in SIZES.items():
        complete = [row for row in rows if row["task"] == task and {"bytes", "speed"} <= row.keys()]
        quality = ["accuracy", "difference", "95 % interval", "agreement"] if task == "sst2" else ["cosine", "lowest"]
        headings = ["model", "runtime", *quality, "MB", *(size.replace("x", "×") for size in sizes)]
        cells = []
        for row in complete:
            if task == "sst2":
                low, high = row["interval"]
                known = [f"{row['accuracy']:.1f}", f"{row['difference']:+.1f}", f"{low:+.1f} to {high:+.1f}"]
                known.append(f"{row['agreement']:.1f}")
            else:
                known = [f"{row['cosine']:.4f}", f"{row['lowest']:.4f}"]
            cells.append(
                [
                    row["model"],
                    f"{RUNTIMES[row['runtime']]}, {row['precision']}",
                    *known,
                    f"{row['bytes'] / 1e6:.0f}",
                    *(f"{row['speed'][size]['faster']:.2f}" for size in sizes),
                ]
            )
        if cells:
            parts += [f"### {TITLES[task]}", markdown(headings, cells)]
    return "\n\n".join(parts)


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
