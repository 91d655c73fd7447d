"""Healing with more and fewer kernels kept by oneDNN, which compiles one for every shape of a product.

The demo checkpoint at half of its layers' arithmetic is healed for 400 steps on six kinds of text, in a process of its
own for every number of kernels (ONEDNN_PRIMITIVE_CACHE_CAPACITY), in turn. The command line keeps 4,096; 1,024 is what
oneDNN keeps by itself.

    OMP_NUM_THREADS=1 python benchmarks/kernel_cache.py [--rounds 2]

Writes results/kernel_cache.json and .md: CPU seconds of the last 380 steps, and what the process held at most.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from statistics import mean
from typing import Any

from common import demo_folder, kept, machine, markdown, write
from kinds import KINDS, heal_options, made, texts

import collab

WORK = Path(__file__).parent / "work" / "kinds"
CAPACITIES = 1024, 2048, 4096
STEPS, LAST = 400, 380


def main() -> None:
    """Measures every number of kernels, in turn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--here", action="store_true", help="heal in this process, and print what was measured")
    chosen = parser.parse_args()
    folder = WORK / "start-all"
    if not folder.is_dir():
        made("half", folder, steps=0)
    if chosen.here:
        print(json.dumps(healed(folder)))
        return
    rows = kept("kernel_cache").get("rows", [])
    for _ in range(chosen.rounds):
        for capacity in CAPACITIES:
            environment = os.environ | {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": str(capacity)}
            command = [sys.executable, __file__, "--here"]
            done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
            rows.append({"kernels": capacity} | json.loads(done.stdout.splitlines()[-1]))
            write("kernel_cache", {"machine": machine(), "rows": rows}, table(rows))


def healed(folder: Path) -> dict[str, float]:
    """Heals; CPU seconds of the last steps, and the most bytes held."""
    known = texts()
    moments = [0.0]

    def progress(*what: Any) -> None:
        moments.append(time.process_time())

    collab.heal(
        collab.load(str(folder)),
        collab.load(str(demo_folder())),
        collab.Mixture({kind: known[kind][0] for kind in KINDS}),
        options=heal_options(steps=STEPS, evaluations=1),
        progress=progress,
    )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"seconds": moments[-1] - moments[-LAST], "peak_bytes": peak}


def table(rows: list[dict[str, Any]]) -> str:
    """A row for each number of kernels, the mean of its runs."""
    by_number = {number: [row for row in rows if row["kernels"] == number] for number in CAPACITIES}
    seconds = {number: mean(row["seconds"] for row in same) for number, same in by_number.items() if same}
    cells = [
        [
            str(number),
            str(len(by_number[number])),
            f"{of_these:.0f}",
            f"{of_these / seconds[CAPACITIES[0]]:.2f}",
            f"{max(row['peak_bytes'] for row in by_number[number]) / 1e9:.1f}",
        ]
        for number, of_these in seconds.items()
    ]
    return markdown(["kernels kept", "runs", "CPU s", "of those with 1,024", "GB held"], cells)


if __name__ == "__main__":
    main()
