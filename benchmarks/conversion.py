"""How long a conversion takes, against loading the model and running it.

Of the demo checkpoint, everything in turn in one run:

- calibrating on random words, against a plain forward pass over the same rows;
- the whole command `collab convert`, against a process that loads the model and runs the same rows, both with their
  imports;
- `collab.convert` of the loaded model in each form, and all that the command does but its imports and refinement.

    python benchmarks/conversion.py

Writes results/conversion.json and .md. About five minutes on two quiet cores.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
import transformers
from common import demo_folder, machine, markdown, write
from transformers import AutoModel, AutoTokenizer

import collab
from collab.data.batches import Batch, batched, row_batches
from collab.data.features import synthetic_features

RANK, REPEATS, SAMPLES, ROWS_IN_BATCH = 128, 3, 1024, 32
FORMS = ("concat", "cp", "tucker")
FORWARD, PROCESS = f"forward pass, {ROWS_IN_BATCH} rows at a time", "process: import, load, run the rows"

_LOAD_AND_RUN = """
import json, sys
import torch
from transformers import AutoModel, AutoTokenizer
model, tokenizer = AutoModel.from_pretrained(sys.argv[1]), AutoTokenizer.from_pretrained(sys.argv[1])
with open(sys.argv[2]) as file:
    rows = sorted(json.load(file), key=lambda row: len(row["input_ids"]))
with torch.no_grad():
    for start in range(0, len(rows), int(sys.argv[3])):
        model(**tokenizer.pad(rows[start : start + int(sys.argv[3])], return_tensors="pt"))
"""


class Tasks:
    """What is timed.

    Args:
        folder: for what the tasks write.
    """

    def __init__(self, folder: Path) -> None:
        self.checkpoint, self.folder, self.rows = demo_folder(), folder, folder / "rows.json"
        self.native = AutoModel.from_pretrained(self.checkpoint).eval()
        self.tokenizer = AutoTokenizer.from_pretrained(self.checkpoint)
        features = synthetic_features(self.native, self.tokenizer, SAMPLES)
        self.rows.write_text(json.dumps(features))
        self.plain = row_batches(self.native, self.tokenizer, features, ROWS_IN_BATCH)
        self.own = batched(self.native, self.tokenizer, features)

    def all(self) -> dict[str, tuple[Callable[[], object], str]]:
        """Every task, with the name of the one that it is compared with."""
        tasks: dict[str, tuple[Callable[[], object], str]] = {
            FORWARD: (lambda: self.forward(self.plain), FORWARD),
            "forward pass, in the batches of calibration": (lambda: self.forward(self.own), FORWARD),
            "calibrate": (lambda: collab.calibrate(collab.Checkpoint(self.native, self.tokenizer)), FORWARD),
            PROCESS: (self.load_and_run, PROCESS),
            "process: `collab convert --refine none`": (lambda: self.command("--refine", "none"), PROCESS),
            "process: `collab convert`": (self.command, PROCESS),
        }
        for form in FORMS:
            tasks[f"convert by the weights, {form}"] = (lambda form=form: self.convert(form), FORWARD)
        for form in FORMS:
            name = f"load, calibrate, solve, compare, export and check, {form}"
            tasks[name] = (lambda form=form: self.export(form), FORWARD)
        return tasks

    def forward(self, batches: list[Batch]) -> None:
        """A plain pass."""
        with torch.no_grad():
            for batch in batches:
                self.native(**batch)

    def load_and_run(self) -> None:
        """What anyone does with the model, in a process of its own."""
        self._process("-c", _LOAD_AND_RUN, str(self.checkpoint), str(self.rows), str(ROWS_IN_BATCH))

    def command(self, *options: str) -> None:
        """The default command, in a process of its own."""
        with tempfile.TemporaryDirectory(dir=self.folder) as output:
            self._process(
                "-m", "collab", "convert", str(self.checkpoint), f"{output}/out", "--rank", str(RANK), *options
            )

    def convert(self, form: str) -> None:
        """The loaded model, by its weights alone."""
        collab.convert(self.native, collab.ConversionConfig(rank=RANK, form=form, compare=False))

    def export(self, form: str) -> None:
        """All that the command does but its imports."""
        with tempfile.TemporaryDirectory(dir=self.folder) as output:
            config = collab.ConversionConfig(rank=RANK, form=form, refine="none")
            collab.checkpoints.convert(str(self.checkpoint), Path(output) / "out", config)

    def _process(self, *arguments: str) -> None:
        subprocess.run([sys.executable, *arguments], check=True, capture_output=True, cwd=Path(__file__).parents[1])


def timed(function: Callable[[], object]) -> float:
    """Seconds of one call."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def main() -> None:
    """Runs everything."""
    transformers.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as folder:
        tasks = Tasks(Path(folder)).all()
        times: dict[str, list[float]] = {name: [] for name in tasks}
        for repeat in range(REPEATS + 1):
            for name, (task, _) in tasks.items():
                taken = timed(task)
                if repeat:  # the first round warms up
                    times[name].append(taken)
    rows: list[dict[str, Any]] = [
        {
            "task": name,
            "seconds": median(times[name]),
            "base": base,
            "ratio": median(taken / before for taken, before in zip(times[name], times[base], strict=True)),
        }
        for name, (_, base) in tasks.items()
    ]
    table = markdown(
        [f"demo checkpoint, R = {RANK}, {16 * SAMPLES:,} tokens", "seconds", "ratio", "to"],
        [[row["task"], f"{row['seconds']:.2f}", f"{row['ratio']:.2f}", row["base"]] for row in rows],
    )
    write("conversion", {"machine": machine(), "rank": RANK, "samples": SAMPLES, "rows": rows}, table)


if __name__ == "__main__":
    main()
