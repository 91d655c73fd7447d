"""Conversions of the demo checkpoint in onnxruntime, beside the original exported the same way.

What `collab export --format onnx --int8` writes of the original, of conversions and of a compressed model: size, how
far the int8 graph is from PyTorch, and time for 8 sequences of 128 tokens and 2 of 512, one row padded. The graphs run
in turn, so that what else the machine does hits all of them; ratios are of neighbours in time.

    python benchmarks/serving.py

Writes results/serving.json and .md. About five minutes on two cores.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch
from common import demo_folder, machine, markdown, write

import collab
from collab.checkpoints.export import GRAPH_FILE, INT8_FILE
from collab.graphs.check import session

SETTINGS = (("cp", 128), ("tucker", 32), ("concat", 128))
SPEEDUP = 1.8  # asked of collab compress, untrained
SHAPES = ((8, 128), (2, 512))
ROUNDS = 30
FILES = (GRAPH_FILE, INT8_FILE)


def export(folder: Path) -> dict[str, dict[str, Any]]:
    """Exports the original and its conversions; their records by name, each with its folder."""
    sources = {"original": str(demo_folder())}
    for form, rank in SETTINGS:
        name = f"{form}, {rank}"
        sources[name] = str(folder / f"{form}-{rank}")
        collab.checkpoints.convert(str(demo_folder()), sources[name], collab.ConversionConfig(rank=rank, form=form))
    name = f"compress --speedup {SPEEDUP}"
    sources[name] = str(folder / "compressed")
    collab.checkpoints.compress(str(demo_folder()), sources[name], collab.CompressionConfig(speedup=SPEEDUP))
    records = {}
    for number, (name, source) in enumerate(sources.items()):
        output = folder / f"onnx-{number}"
        records[name] = collab.checkpoints.export(source, output, int8=True).report.to_dict() | {"folder": output}
    return records


def times(graphs: dict[tuple[str, str], Any], batch: int, length: int) -> dict[tuple[str, str], list[float]]:
    """Seconds of every round of every graph, in turn."""
    generator = torch.Generator().manual_seed(0)
    mask = torch.ones(batch, length, dtype=torch.long)
    mask[-1, length // 2 :] = 0
    inputs = {
        "input_ids": torch.randint(1000, 30000, (batch, length), generator=generator).numpy(),
        "attention_mask": mask.numpy(),
        "token_type_ids": torch.zeros_like(mask).numpy(),
    }
    taken: dict[tuple[str, str], list[float]] = {name: [] for name in graphs}
    for number in range(ROUNDS + 1):
        for name, graph in graphs.items():
            start = time.perf_counter()
            graph.run(None, inputs)
            if number:  # the first round warms up
                taken[name].append(time.perf_counter() - start)
    return taken


def main() -> None:
    """Exports and measures."""
    with tempfile.TemporaryDirectory() as folder:
        records = export(Path(folder))
        load = os.getloadavg()[0]
        graphs = {(name, file): session(record["folder"] / file) for name, record in records.items() for file in FILES}
        rows = []
        for batch, length in SHAPES:
            seconds_of = times(graphs, batch, length)
            baseline = seconds_of["original", GRAPH_FILE]
            for (name, file), seconds in seconds_of.items():
                ratios = sorted(whole / part for whole, part in zip(baseline, seconds, strict=True))
                rows.append(
                    {
                        "model": name,
                        "file": file,
                        "shape": [batch, length],
                        "milliseconds": 1e3 * median(seconds),
                        "faster": median(ratios),
                        "quartiles": [ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]],
                        "bytes": records[name]["bytes"][file],
                        "agreement": records[name]["verification" if file == GRAPH_FILE else "int8"],
                    }
                )
    write("serving", {"machine": machine(), "load": load, "rounds": ROUNDS, "rows": rows}, table(rows, load))


def table(rows: list[dict[str, Any]], load: float) -> str:
    """Speed at both shapes, size and agreement with PyTorch, a row for every graph."""
    headings = ["form, R", "graph", "MB", "largest difference", "mean", "cosine"]
    for batch, length in SHAPES:
        headings += [f"{batch}×{length}, ms", "times the original"]
    cells = []
    for first in (row for row in rows if row["shape"] == list(SHAPES[0])):
        same = [row for row in rows if (row["model"], row["file"]) == (first["model"], first["file"])]
        agreement = first["agreement"]
        speeds = [
            [f"{row['milliseconds']:.0f}", f"{row['faster']:.2f} ({row['quartiles'][0]:.2f}–{row['quartiles'][1]:.2f})"]
            for row in same
        ]
        cells.append(
            [
                first["model"],
                "int8" if first["file"] == INT8_FILE else "float32",
                f"{first['bytes'] / 1e6:.1f}",
                f"{agreement['largest_difference']:.1e}",
                f"{agreement['mean_difference']:.1e}",
                f"{agreement['lowest_cosine']:.4f}",
                *(cell for speed in speeds for cell in speed),
            ]
        )
    note = (
        "Differences and cosine are to the same model in PyTorch, on random tokens. Times the original: speed against "
        f"the original's float32 graph, medians and quartiles of {ROUNDS} rounds in turn; one-minute load of the "
        f"machine at the start: {load:.1f}."
    )
    return f"{markdown(headings, cells)}\n\n{note}"


if __name__ == "__main__":
    main()
