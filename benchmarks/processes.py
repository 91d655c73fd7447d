"""Seconds by phase, memory and bytes sent of a command in one and in several processes.

`collab convert --heal` or, with --command compress, `collab compress` of the demo checkpoint: in one process of one and
of two threads, and under torchrun in two processes of one thread each. On two cores two processes cannot be faster than
two threads: the difference is what dividing the work costs. Memory is the most that each process held of its own
(anonymous pages), read every 20 ms; bytes are those that the loopback interface passed on, of everything on the
machine.

    python benchmarks/processes.py [--command compress] [--only PROCESSES THREADS]

With --only one of the three is measured, and the others are kept. With --plan nothing is measured. Writes
results/processes.json and .md, or processes_compress.json and .md, and results/processes_plan.md, which is arithmetic:
bytes for larger models.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from common import RESULTS, demo_folder, kept, machine, markdown, my_turn, stsb, write

MODELS = {"7 billion": (6.7e9, 4096, 4096, 32), "70 billion": (69e9, 8192, 1024, 80)}
"""Parameters, width, width of the keys, and layers, of Llama 2."""

WAYS = ((1, 1), (1, 2), (2, 1))
COMMANDS = {
    "convert": ("--rank", "192", "--calibration-samples", "512", "--refine", "40", "--heal-steps", "20", "--no-speed"),
    "compress": ("--flops", "0.5", "--calibration-samples", "512", "--heal-steps", "0", "--no-speed"),
}


def measure(command: str, processes: int, threads: int) -> dict[str, Any]:
    """One run."""
    with tempfile.TemporaryDirectory(prefix="collab-processes.") as top:
        text = Path(top) / "text.txt"
        text.write_text("\n".join(dict.fromkeys(stsb("train")[0])), encoding="utf-8")
        line = ["-m", "collab", command, str(demo_folder()), f"{top}/out", *COMMANDS[command]]
        line += ["--calibration", str(text)]
        line += ["--heal", str(text)] * (command == "convert")
        if processes > 1:
            line = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes), *line]
        environment = os.environ | {"OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1"}
        before, start = passed_on(), time.perf_counter()
        done = subprocess.Popen([sys.executable, *line], env=environment, stderr=subprocess.PIPE, text=True)
        held: dict[int, int] = {}
        while done.poll() is None:
            for process in workers(done.pid, processes):
                held[process] = max(held.get(process, 0), anonymous(process))
            time.sleep(0.02)
        seconds, sent = time.perf_counter() - start, passed_on() - before
        assert done.stderr is not None
        messages = done.stderr.read()
    if done.returncode:
        raise SystemExit(messages)
    took = re.search(r"Took [\d.]+ s: (.*)", messages)
    assert took is not None, messages
    phases = {name: float(value) for name, value in re.findall(r"([a-z ]+?) ([\d.]+) s", took[1])}
    return {
        "processes": processes,
        "threads": threads,
        "seconds": round(seconds, 1),
        "phases": {name.strip(): value for name, value in phases.items()},
        "held": sorted(held.values(), reverse=True)[:processes],
        "sent": sent,
    }


def workers(launched: int, processes: int) -> list[int]:
    """The processes that work: the one that was launched, or those that the launcher started."""
    if processes == 1:
        return [launched]
    children = Path(f"/proc/{launched}/task/{launched}/children")
    with contextlib.suppress(OSError):
        return [int(child) for child in children.read_text().split()]
    return []


def anonymous(process: int, name: str = "RssAnon") -> int:
    """Bytes of a process's own memory that are resident, or another number that the system has of it."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path(f"/proc/{process}/status").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
    return 0


def passed_on() -> int:
    """Bytes that the loopback interface has received."""
    for line in Path("/proc/net/dev").read_text().splitlines():
        name, _, counts = line.partition(":")
        if name.strip() == "lo":
            return int(counts.split()[0])
    return 0


def planned() -> str:
    """Bytes that each process keeps and sends, as the code is now, for decoders in bfloat16 at half of their ranks."""
    columns = []
    for parameters, width, key_width, layers in MODELS.values():
        sums = layers * 2 * 2 * width**2 * 8  # queries and keys, fitted and held out, in float64
        graph = width // 5 * 18 * width * layers * 4  # of the tokens of a batch of calibration; see tokens_in_batch
        factors = layers * width * (width + key_width) // 2
        columns.append(
            {
                "weights": 2 * parameters,
                "sums of calibration": sums,
                "graph of a batch": graph,
                "kept while calibrating": 2 * parameters + sums + graph,
                **{f"sent to calibrate, {count} GPUs": 2 * (count - 1) / count * sums for count in (8, 64)},
                "kept for healing factors, without activations": 8 * parameters + 12 * factors,
                **{
                    f"sent in a step of healing, {count} GPUs": 2 * (count - 1) / count * 4 * factors
                    for count in (8, 64)
                },
            }
            | {
                name: value
                for count in (8, 64)
                for name, value in shared(count, parameters, layers, sums, graph, factors).items()
            }
        )
    rows = [[name, *(f"{column[name] / 1e9:.1f}" for column in columns)] for name in columns[0]]
    return markdown(["GB of each process", *MODELS], rows)


def shared(count: int, parameters: float, layers: int, sums: float, graph: float, factors: float) -> dict[str, float]:
    """What each of so many processes keeps and receives with --shard; see `planned`.

    Weights are gathered for the forward and again for the backward pass, of the teacher for the forward pass alone.
    After every batch of calibration the sums of that batch, fitted or held out, go to the owners of the layers.
    """
    others = (count - 1) / count
    kept_to_calibrate = 2 * parameters / count + 2 * parameters / layers + sums / count + sums / 2 / layers + graph
    kept_to_heal = (8 * parameters + 12 * factors) / count + 8 * parameters / layers
    return {
        f"kept while calibrating, --shard, {count} GPUs": kept_to_calibrate,
        f"weights gathered for a batch of calibration, {count} GPUs": others * 2 * 2 * parameters,
        f"sums sent for a batch of calibration, {count} GPUs": others * sums / 2,
        f"kept for healing factors, --shard, without activations, {count} GPUs": kept_to_heal,
        f"weights gathered in a step of healing, {count} GPUs": others * 3 * 4 * parameters,
    }


def main() -> None:
    """Runs everything."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--command", choices=list(COMMANDS), default="convert")
    parser.add_argument("--only", type=int, nargs=2, metavar=("PROCESSES", "THREADS"))
    parser.add_argument("--plan", action="store_true", help="Measure nothing.")
    wanted = parser.parse_args()
    (RESULTS / "processes_plan.md").write_text(planned() + "\n")
    if wanted.plan:
        return
    rows = [measure(wanted.command, *way) for way in WAYS if wanted.only is None or way == tuple(wanted.only)]
    print(json.dumps(rows), file=sys.stderr)
    name = "processes" if wanted.command == "convert" else f"processes_{wanted.command}"
    with my_turn(name):
        measured = {(row["processes"], row["threads"]) for row in rows}
        earlier = kept(name).get("rows", [])
        rows += [row for row in earlier if (row["processes"], row["threads"]) not in measured]
        rows.sort(key=lambda row: (row["processes"], row["threads"]))
        names = [f"{row['processes']} × {row['threads']}" for row in rows]
        phases = list(dict.fromkeys(name for row in rows for name in row["phases"]))
        body = [[f"{phase}, s", *(f"{row['phases'].get(phase, 0):.1f}" for row in rows)] for phase in phases]
        body.append(["whole command, s", *(f"{row['seconds']:.1f}" for row in rows)])
        body.append(["held, MB", *(" and ".join(f"{held / 1e6:.0f}" for held in row["held"]) for row in rows)])
        body.append(["sent, MB", *(f"{row['sent'] / 1e6:.0f}" if row["processes"] > 1 else "" for row in rows)])
        write(
            name,
            {"machine": machine(), "options": COMMANDS[wanted.command], "rows": rows},
            markdown(["processes × threads", *names], body),
        )


if __name__ == "__main__":
    main()
