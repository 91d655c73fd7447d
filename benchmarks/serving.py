"""Quality against speed where models are served: PyTorch, onnxruntime and OpenVINO, in float32, bfloat16 and int8.

The demo checkpoint as it is, converted, compressed to half and to a third of its layers' arithmetic, and with three
layers dropped, the last three calibrated and healed on six kinds of text (see kinds.py). Speed is beside the original's
float32 graph in onnxruntime: latency of one row of 32 tokens, throughput of 8 x 32, 8 x 128 and 2 x 512 tokens, and of
the sentences of STS-B dev in batches of 32 rows sorted by length, every fourth of them. Every graph runs in a process
of its own, in turn, while the threads of the others sleep. Quality: Spearman on STS-B dev and cosine of sentence
embeddings to the original's in PyTorch, on STS-B dev and over all six kinds, and to the same model's in float32.

    python benchmarks/serving.py [--model half --model third] [--part speed] [--size 8x128] [--rounds 15]

Writes results/serving.json, .md and .png, and results/frontier.md, the table of README.md; rows are kept, so that parts
may be measured apart: ``graphs`` writes what is to be measured, ``quality`` takes about four minutes a model and
``speed`` about one. Models are in benchmarks/work/kinds, and are made where they are missing, ten CPU minutes each;
graphs are in benchmarks/work/serving, and are written where they are missing.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from common import COLORS, RESULTS, demo_folder, kept, machine, markdown, my_turn, stsb, write
from compression import embed
from kinds import BUDGETS, KINDS, Judge, texts
from transformers import AutoTokenizer
from unseen import WORK, healed_on_all

import collab
from collab.checkpoints.bench import file_bytes
from collab.evaluation.timing import rounds_in_turn
from collab.evaluation.worker import load_any, workers
from collab.graphs.options import INT8_FILE, ONNX_FILE, OPENVINO_FILE

Way = tuple[str, str]

GRAPHS = WORK.parent / "serving"
PARTS = ("graphs", "quality", "speed")
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
    "rank 128, concat": ("converted", "onnxruntime", "float32"),
}
"""The rows of the table in README.md, as far as they have been measured; short, because telephones are narrow."""


def checkpoint(name: str, folder: Path) -> Path:
    """The folder of a model in PyTorch."""
    if name == "original":
        return demo_folder()
    if name == "converted":
        config = collab.ConversionConfig(rank=128, form="concat", compare=False)
        if not (folder / "converted").is_dir():
            collab.checkpoints.convert(str(demo_folder()), folder / "converted", config)
        return folder / "converted"
    return healed_on_all(name)


def graphs(name: str) -> dict[Way, str]:
    """What runs a model, by runtime and precision; graphs are written where they are missing."""
    folder = GRAPHS / name.replace(" ", "-")
    folder.mkdir(parents=True, exist_ok=True)
    mixture = collab.Mixture({kind: rows for kind, (rows, _) in texts().items()})
    calibration = collab.CalibrationRequest(mixture, collab.CalibrationOptions(2048, 128))
    return ways(str(checkpoint(name, folder)), folder, calibration)


def ways(source: str, folder: Path, calibration: collab.CalibrationRequest) -> dict[Way, str]:
    """A model and its graphs in a folder, by runtime and precision."""
    for format_, precision in (("onnx", "int8"), ("openvino", "bfloat16"), ("openvino", "int8")):
        output = folder / f"{format_}-{precision}"
        if not output.is_dir():
            given = calibration if precision == "int8" else None
            collab.checkpoints.export(source, output, collab.ExportOptions(format_, precision), calibration=given)
    return {
        ("torch", "float32"): source,
        ("onnxruntime", "float32"): str(folder / "onnx-int8" / ONNX_FILE),
        ("onnxruntime", "int8"): str(folder / "onnx-int8" / INT8_FILE),
        ("openvino", "bfloat16"): str(folder / "openvino-bfloat16" / OPENVINO_FILE),
        ("openvino", "int8"): str(folder / "openvino-int8" / OPENVINO_FILE),
    }


def speeds(
    paths: Sequence[str], sizes: Mapping[str, Sequence[tuple[int, int | None]]], rounds: int
) -> list[dict[str, Any]]:
    """By graph, times as fast as the first one at every size, with quartiles, milliseconds, and peak memory."""
    measured: list[dict[str, Any]] = [{} for _ in paths]
    with workers(paths, torch.float32) as processes:
        for size, shapes in sizes.items():
            for process in processes:
                process.prepare(shapes)
            few = len(shapes) > 1
            others = running()
            taken = rounds_in_turn(
                [(process, [{}]) for process in processes], max(3, rounds // 4) if few else rounds, warm=1 if few else 2
            )
            for number, (entry, process) in enumerate(zip(measured, processes, strict=True)):
                ratios = np.quantile([times[0] / times[number] for times in taken], (0.25, 0.5, 0.75))
                memory = process.memory()
                entry[size] = {
                    "faster": float(ratios[1]),
                    "quartiles": [float(ratios[0]), float(ratios[2])],
                    "milliseconds": 1e3 * median(times[number] for times in taken),
                    "rounds": len(taken),
                    "running": others,
                    "peak_bytes": None if memory is None else memory.peak_bytes,
                }
    return measured


def running() -> int | None:
    """Processes and threads that run at the moment, this one among them; None where the system does not tell."""
    file = Path("/proc/loadavg")
    return int(file.read_text().split()[3].partition("/")[0]) if file.is_file() else None


def sorted_batches(tokenizer: Any) -> list[tuple[int, int]]:
    """Rows and tokens of every fourth batch of STS-B dev, sorted by length."""
    sentences = [text for part in stsb("dev")[:2] for text in part]
    lengths = sorted(len(ids) for ids in tokenizer(sentences)["input_ids"])
    return [(len(part), part[-1]) for part in (lengths[start : start + 32] for start in range(0, len(lengths), 128))]


def qualities(judge: Judge, paths: Mapping[Way, str]) -> dict[Way, dict[str, Any]]:
    """The quality of a model in every runtime and precision, with the cosine to itself in PyTorch, and its size."""
    plain = embed(load_any(paths["torch", "float32"]).model, judge.tokenizer, judge.texts["STS-B"])
    measured = {}
    for way, path in paths.items():
        loaded = load_any(path)
        actual = embed(loaded.model, judge.tokenizer, judge.texts["STS-B"])
        own = float((actual * plain).sum(1).mean())
        measured[way] = judge.measure(loaded.model) | {"own": own, "bytes": file_bytes(loaded)}
    return measured


def main() -> None:
    """Measures what was asked for, and keeps what was measured before."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", choices=MODELS)
    parser.add_argument("--part", action="append", choices=PARTS)
    parser.add_argument("--size", action="append", choices=(*SIZES, "text"), help="of speed")
    parser.add_argument("--rounds", type=int, default=15)
    chosen = parser.parse_args()
    parts = chosen.part or PARTS
    judge = Judge() if "quality" in parts else None
    baseline = graphs("original")["onnxruntime", "float32"]
    for name in chosen.model or MODELS:
        paths = graphs(name)
        if judge is not None:
            keep(name, qualities(judge, paths))
        if "speed" in parts:
            sizes = SIZES | {"text": sorted_batches(AutoTokenizer.from_pretrained(demo_folder()))}
            asked = {size: sizes[size] for size in chosen.size or sizes}
            fast = speeds([baseline, *paths.values()], asked, chosen.rounds)[1:]
            keep(name, {way: {"speed": speed} for way, speed in zip(paths, fast, strict=True)})


def keep(name: str, measured: Mapping[Way, dict[str, Any]]) -> None:
    """Adds measurements of a model to the results, in place of older ones of the same."""
    with my_turn("serving"):
        known = {way_of(row): row for row in kept("serving").get("rows", [])}
        for way, new in measured.items():
            row = known.setdefault((name, *way), {"model": name, "runtime": way[0], "precision": way[1], "speed": {}})
            row |= new | {"speed": row["speed"] | new.get("speed", {})}
        rows = sorted(known.values(), key=lambda row: (MODELS.index(row["model"]), WAYS.index(way_of(row)[1:])))
        complete = [row for row in rows if "own" in row and {*SIZES, "text"} <= row["speed"].keys()]
        write("serving", {"machine": machine(), "rows": rows}, table(complete))
        (RESULTS / "frontier.md").write_text(frontier(complete) + "\n")
        draw(complete)


def way_of(row: Mapping[str, Any]) -> tuple[str, str, str]:
    """Model, runtime and precision of a row."""
    return row["model"], row["runtime"], row["precision"]


def peak(row: Mapping[str, Any]) -> int | None:
    """Peak memory of the process at the largest size."""
    return row["speed"]["2x512"]["peak_bytes"]


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
                "" if peak(row) is None else f"{peak(row) / 1e6:.0f}",
            ]
        )
        times.append([*row_of, *(f"{row['speed'][size]['faster']:.2f}" for size in (*SIZES, "text"))])
    others = [speed["running"] for row in rows for speed in row["speed"].values() if speed["running"] is not None]
    return "\n\n".join(
        [
            "### Quality and size",
            markdown(quality, cells),
            "### Times as fast as the original's float32 graph in onnxruntime",
            markdown(speed, times),
            "Columns are rows × tokens; text is STS-B dev sorted by length."
            + (
                f" Running processes when a measurement began, its own among them: {min(others)} to {max(others)}."
                if others
                else ""
            ),
        ]
    )


def frontier(rows: list[dict[str, Any]]) -> str:
    """The table of README.md: what one gets, float32 in onnxruntime and int8 in OpenVINO."""
    known = {way_of(row): row for row in rows}
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
    names = [name for name in MODELS if any(row["model"] == name for row in rows)]
    palette = ("black", *(COLORS[name] for name in ("concat", "cp", "tucker", "rival")), "#CC79A7", "#56B4E9")
    colors = dict(zip(names, itertools.cycle(palette)))
    markers = dict(zip(WAYS, "ovs^D", strict=True))
    for name, color in colors.items():
        own = [row for row in rows if row["model"] == name]
        for row in own:
            marker = markers[row["runtime"], row["precision"]]
            axes.scatter(row["speed"]["8x128"]["faster"], six_kinds(row), color=color, marker=marker, s=45)
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
