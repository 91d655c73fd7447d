"""Quality against speed where models are served: PyTorch, onnxruntime and OpenVINO, in float32, bfloat16 and int8.

The demo checkpoint as it is, converted, compressed to half and to a third of its layers' arithmetic, and with three
layers dropped, the last three calibrated and healed on six kinds of text (see kinds.py). Speed is beside the original's
float32 graph in onnxruntime: latency of one row of 32 tokens, throughput of 8 x 32, 8 x 128 and 2 x 512 tokens, and of
the sentences of STS-B dev in batches of 32 rows sorted by length. Every graph runs in a process of its own, in turn,
while the threads of the others sleep. Quality: Spearman on STS-B dev and cosine of sentence embeddings to the
original's in PyTorch, on STS-B dev and over all six kinds, and to the same model's in float32.

    python benchmarks/serving.py [--model half --model third] [--rounds 15]

Writes results/serving.json, .md and .png, and results/frontier.md, the table of README.md. Models are in
benchmarks/work/kinds, and are made where they are missing, ten CPU minutes each; the measurement takes about fifteen
minutes on two cores.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from common import COLORS, RESULTS, demo_folder, kept, machine, markdown, stsb, write
from compression import embed
from kinds import BUDGETS, KINDS, STEPS, Judge, made, texts
from unseen import WORK

import collab
from collab.checkpoints.bench import file_bytes
from collab.evaluation.timing import rounds_in_turn
from collab.evaluation.worker import load_any, workers
from collab.graphs.options import INT8_FILE, ONNX_FILE, OPENVINO_FILE

MODELS = ("original", "converted", *BUDGETS)
SIZES = {"1x32": [(1, 32)], "8x32": [(8, 32)], "8x128": [(8, 128)], "2x512": [(2, 512)]}
WAYS = (
    ("torch", "float32"),
    ("onnxruntime", "float32"),
    ("onnxruntime", "int8"),
    ("openvino", "bfloat16"),
    ("openvino", "int8"),
)
RUNTIMES = {"torch": "PyTorch", "onnxruntime": "onnxruntime", "openvino": "OpenVINO"}
FRONTIER = {
    "full size": ("original", "onnxruntime", "float32"),
    "full size, int8": ("original", "openvino", "int8"),
    "half": ("half", "onnxruntime", "float32"),
    "half, int8": ("half", "openvino", "int8"),
    "a third, int8": ("third", "openvino", "int8"),
    "rank 128": ("converted", "onnxruntime", "float32"),
}
"""The rows of the table in README.md, as far as they have been measured; short, because telephones are narrow."""


def checkpoint(name: str, folder: Path) -> Path:
    """The folder of a model in PyTorch."""
    if name == "original":
        return demo_folder()
    if name == "converted":
        config = collab.ConversionConfig(rank=128, form="concat", compare=False)
        collab.checkpoints.convert(str(demo_folder()), folder / "converted", config)
        return folder / "converted"
    path = WORK / f"{name.replace(' ', '-')}-none-now-{STEPS}-0"
    if not path.is_dir():
        made(name, path)
    return path


def graphs(name: str, folder: Path) -> dict[tuple[str, str], str]:
    """What runs a model, by runtime and precision."""
    source = str(checkpoint(name, folder))
    mixture = collab.Mixture({kind: rows for kind, (rows, _) in texts().items()})
    calibration = collab.CalibrationRequest(mixture, collab.CalibrationOptions(2048, 128))
    collab.checkpoints.export(source, folder / "onnx", collab.ExportOptions("onnx", "int8"))
    for precision in ("bfloat16", "int8"):
        options = collab.ExportOptions("openvino", precision)
        given = calibration if precision == "int8" else None
        collab.checkpoints.export(source, folder / precision, options, calibration=given)
    return {
        ("torch", "float32"): source,
        ("onnxruntime", "float32"): str(folder / "onnx" / ONNX_FILE),
        ("onnxruntime", "int8"): str(folder / "onnx" / INT8_FILE),
        ("openvino", "bfloat16"): str(folder / "bfloat16" / OPENVINO_FILE),
        ("openvino", "int8"): str(folder / "int8" / OPENVINO_FILE),
    }


def speeds(paths: Sequence[str], rounds: int, text: list[tuple[int, int]]) -> list[dict[str, Any]]:
    """By graph, times as fast as the first one at every size, with quartiles, milliseconds, and peak memory."""
    measured: list[dict[str, Any]] = [{} for _ in paths]
    with workers(paths, torch.float32) as processes:
        for size, shapes in (SIZES | {"text": text}).items():
            for process in processes:
                process.prepare(shapes)
            count = rounds if size != "text" else max(3, rounds // 4)
            taken = rounds_in_turn([(process, [{}]) for process in processes], count, warm=2 if size != "text" else 1)
            for number, entry in enumerate(measured):
                ratios = np.quantile([times[0] / times[number] for times in taken], (0.25, 0.5, 0.75))
                entry[size] = {
                    "faster": float(ratios[1]),
                    "quartiles": [float(ratios[0]), float(ratios[2])],
                    "milliseconds": 1e3 * median(times[number] for times in taken),
                }
        for entry, process in zip(measured, processes, strict=True):
            memory = process.memory()
            entry["peak_bytes"] = None if memory is None else memory.peak_bytes
    return measured


def sorted_batches(tokenizer: Any) -> list[tuple[int, int]]:
    """Rows and tokens of the batches of STS-B dev, sorted by length."""
    sentences = [text for part in stsb("dev")[:2] for text in part]
    lengths = sorted(len(ids) for ids in tokenizer(sentences)["input_ids"])
    return [(len(part), part[-1]) for part in (lengths[start : start + 32] for start in range(0, len(lengths), 32))]


def own_cosine(judge: Judge, paths: dict[tuple[str, str], str]) -> dict[tuple[str, str], dict[str, float]]:
    """The quality of a model in every runtime and precision, with the cosine to itself in PyTorch."""
    plain = embed(load_any(paths["torch", "float32"]).model, judge.tokenizer, judge.texts["STS-B"])
    measured = {}
    for way, path in paths.items():
        model = load_any(path).model
        measured[way] = judge.measure(model)
        actual = embed(model, judge.tokenizer, judge.texts["STS-B"])
        measured[way]["own"] = float((actual * plain).sum(1).mean())
    return measured


def main() -> None:
    """Measures the models that were asked for, and keeps the others' rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", choices=MODELS)
    parser.add_argument("--rounds", type=int, default=15)
    chosen = parser.parse_args()
    judge = Judge()
    text = sorted_batches(judge.tokenizer)
    baseline_folder = Path(tempfile.mkdtemp())
    collab.checkpoints.export(str(demo_folder()), baseline_folder / "onnx")
    for name in chosen.model or MODELS:
        load = os.getloadavg()[0]
        folder = Path(tempfile.mkdtemp())
        paths = graphs(name, folder)
        fast = speeds([str(baseline_folder / "onnx"), *paths.values()], chosen.rounds, text)[1:]
        quality = own_cosine(judge, paths)
        rows = [row for row in kept("serving").get("rows", []) if row["model"] != name]
        for (way, path), speed in zip(paths.items(), fast, strict=True):
            rows.append(
                {"model": name, "runtime": way[0], "precision": way[1], "load": load, "rounds": chosen.rounds}
                | {"bytes": file_bytes(load_any(path)), "speed": speed}
                | quality[way]
            )
        shutil.rmtree(folder)
        rows.sort(key=lambda row: (MODELS.index(row["model"]), WAYS.index((row["runtime"], row["precision"]))))
        write("serving", {"machine": machine(), "rows": rows}, table(rows))
        (RESULTS / "frontier.md").write_text(frontier(rows) + "\n")
        draw(rows)
    shutil.rmtree(baseline_folder)


def six_kinds(row: dict[str, Any]) -> float:
    """Mean cosine over the six kinds of text."""
    return float(np.mean([row[kind] for kind in KINDS]))


def table(rows: list[dict[str, Any]]) -> str:
    """Quality and size, then speed: a row for each model, runtime and precision."""
    quality = ["model", "runtime", "Spearman", "cosine, STS-B", "six kinds", "to itself", "MB", "peak MB"]
    speed = ["model", "runtime", *(size.replace("x", "×") for size in SIZES), "text"]
    cells, times = [], []
    for row in rows:
        row_of = [row["model"], f"{RUNTIMES[row['runtime']]}, {row['precision']}"]
        cells.append(
            [
                *row_of,
                f"{row['spearman']:.2f}",
                f"{row['STS-B']:.4f}",
                f"{six_kinds(row):.4f}",
                f"{row['own']:.4f}",
                f"{row['bytes'] / 1e6:.0f}",
                "" if row["speed"]["peak_bytes"] is None else f"{row['speed']['peak_bytes'] / 1e6:.0f}",
            ]
        )
        times.append([*row_of, *(f"{row['speed'][size]['faster']:.2f}" for size in (*SIZES, "text"))])
    loads = [row["load"] for row in rows]
    return "\n\n".join(
        [
            "### Quality and size",
            markdown(quality, cells),
            "### Times as fast as the original's float32 graph in onnxruntime",
            markdown(speed, times),
            "Columns are rows × tokens; text is STS-B dev sorted by length. One-minute load of the machine when a "
            f"measurement began: {min(loads):.1f} to {max(loads):.1f}.",
        ]
    )


def frontier(rows: list[dict[str, Any]]) -> str:
    """The table of README.md: what one gets, float32 in onnxruntime and int8 in OpenVINO."""
    known = {(row["model"], row["runtime"], row["precision"]): row for row in rows}
    cells = []
    for label, key in FRONTIER.items():
        if row := known.get(key):
            speed = {size: row["speed"][size]["milliseconds"] for size in ("1x32", "8x128")}
            cells.append(
                [
                    label,
                    f"{row['spearman']:.1f}",
                    f"{six_kinds(row):.3f}",
                    f"{speed['1x32']:.1f}",
                    f"{8e3 / speed['8x128']:.0f}",
                ]
            )
    return markdown(["", "STS-B", "cosine", "one row, ms", "rows per s"], cells)


def draw(rows: list[dict[str, Any]]) -> None:
    """Cosine over six kinds of text against speed at 8 x 128."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4.8), layout="constrained")
    colors = dict(
        zip(MODELS, ("black", COLORS["concat"], COLORS["cp"], COLORS["tucker"], COLORS["rival"]), strict=True)
    )
    markers = dict(zip(WAYS, "ovs^D", strict=True))
    for name, color in colors.items():
        own = [row for row in rows if row["model"] == name]
        for row in own:
            marker = markers[row["runtime"], row["precision"]]
            axes.scatter(row["speed"]["8x128"]["faster"], six_kinds(row), color=color, marker=marker, s=45)
        if own:
            axes.plot([], [], color=color, label=name)
    for (runtime, precision), marker in markers.items():
        axes.scatter([], [], color="grey", marker=marker, label=f"{runtime}, {precision}")
    axes.set_xlabel("times as fast as the original in onnxruntime, 8 × 128 tokens")
    axes.set_ylabel("cosine to the original's embeddings")
    figure.legend(fontsize=8, ncols=4, loc="outside lower center")
    axes.grid(alpha=0.3)
    figure.savefig(RESULTS / "serving.png", dpi=150)
    pyplot.close(figure)


if __name__ == "__main__":
    main()
