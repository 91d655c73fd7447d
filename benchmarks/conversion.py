"""How long a conversion takes, against loading the model and running it.

The demo checkpoint: loading it and running 64 sentences through it three times, against `collab.convert` of the loaded
model in each form, and against the whole `collab convert` with export and check, in turn in one run.

    python benchmarks/conversion.py

Writes results/conversion.json and .md. About two minutes on two cores.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
import transformers
from common import demo_folder, machine, markdown, stsb, write
from transformers import AutoModel, AutoTokenizer

import collab

RANK, REPEATS = 128, 5


def timed(function: Callable[[], object]) -> float:
    """Seconds of one call."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def main() -> None:
    """Runs everything."""
    transformers.logging.disable_progress_bar()
    folder = demo_folder()
    sentences = stsb("dev")[0][:64]
    inputs = AutoTokenizer.from_pretrained(folder)(sentences, padding=True, return_tensors="pt")
    native = AutoModel.from_pretrained(folder)

    def load_and_run() -> None:
        model = AutoModel.from_pretrained(folder)
        with torch.no_grad():
            for _ in range(3):
                model(**inputs)

    def convert(form: str) -> None:
        collab.convert(native, collab.ConversionConfig(rank=RANK, form=form, compare=False))

    def export(form: str) -> None:
        with tempfile.TemporaryDirectory() as output:
            config = collab.ConversionConfig(rank=RANK, form=form)
            collab.checkpoints.convert(str(folder), Path(output) / "out", config)

    tasks: dict[str, Callable[[], None]] = {"load and run 64 sentences three times": load_and_run}
    for form in ("concat", "cp", "tucker"):
        tasks[f"convert, {form}"] = lambda form=form: convert(form)
    for form in ("concat", "cp", "tucker"):
        tasks[f"load, calibrate, convert, compare, export and check, {form}"] = lambda form=form: export(form)
    times: dict[str, list[float]] = {name: [] for name in tasks}
    for repeat in range(REPEATS + 1):
        for name, task in tasks.items():
            taken = timed(task)
            if repeat:  # the first round warms up
                times[name].append(taken)
    base = times["load and run 64 sentences three times"]
    rows: list[dict[str, Any]] = [
        {
            "task": name,
            "seconds": median(taken),
            "ratio": median(one / two for one, two in zip(taken, base, strict=True)),
        }
        for name, taken in times.items()
    ]
    table = markdown(
        [f"demo checkpoint, R = {RANK}", "seconds", "ratio to loading and running"],
        [[row["task"], f"{row['seconds']:.2f}", f"{row['ratio']:.2f}"] for row in rows],
    )
    write("conversion", {"machine": machine(), "rank": RANK, "rows": rows}, table)


if __name__ == "__main__":
    main()
