"""How soon the command line answers, against importing torch.

The help of every command and three usage errors, each in a process of its own, in turn with `import torch`.

    python benchmarks/start.py

Writes results/start.json and .md. About two minutes on two quiet cores.
"""

from __future__ import annotations

import subprocess
import sys
import time
from statistics import median
from typing import Any

from common import machine, markdown, write

REPEATS = 5
IMPORT = "import torch"
COMMANDS = (
    *("convert", "compress", "plan", "heal", "finetune", "evaluate", "inspect", "heads", "prune", "expand", "bench"),
    *("export", "lengthen", "report"),
)
ERRORS = {
    "unknown option": ("convert", "model", "out", "--no-such-option"),
    "missing argument": ("convert", "model"),
    "malformed rank": ("convert", "model", "out", "--rank", "many"),
}


def seconds(*arguments: str) -> float:
    """Wall-clock time of a Python process."""
    start = time.perf_counter()
    subprocess.run([sys.executable, *arguments], capture_output=True, check=False)
    return time.perf_counter() - start


def main() -> None:
    """Runs everything."""
    tasks = {IMPORT: ("-c", IMPORT), "collab --help": ("-m", "collab", "--help")}
    tasks |= {f"collab {name} --help": ("-m", "collab", name, "--help") for name in COMMANDS}
    tasks |= {f"usage error: {name}": ("-m", "collab", *arguments) for name, arguments in ERRORS.items()}
    times: dict[str, list[float]] = {name: [] for name in tasks}
    for repeat in range(REPEATS + 1):
        for name, arguments in tasks.items():
            taken = seconds(*arguments)
            if repeat:  # the first round fills the disk's cache
                times[name].append(taken)
    base = median(times[IMPORT])
    rows: list[dict[str, Any]] = [
        {"task": name, "seconds": median(taken), "ratio": median(taken) / base} for name, taken in times.items()
    ]
    table = markdown(
        ["", "seconds", "of `import torch`"],
        [[row["task"], f"{row['seconds']:.2f}", f"{row['ratio']:.2f}"] for row in rows],
    )
    write("start", {"machine": machine(), "repeats": REPEATS, "rows": rows}, table)


if __name__ == "__main__":
    main()
