"""Peak memory of `collab convert` against the bytes of the checkpoint, for random models of one width and more layers.

Each conversion is a process of its own; the system says how much of its memory was resident at most. That includes
the pages of the weights' files, which transformers maps into memory and the system takes back when it needs them, and
the libraries, whose share is measured by a process that only imports them. What the process itself holds, the
anonymous part of its memory, is read every 20 ms.

    python benchmarks/memory.py [--layers 6 12 24] [--before FOLDER] [--calibrated]
    python benchmarks/memory.py --layers 30 --wide --limit 4 [--model FOLDER] [--calibrated]
    python benchmarks/memory.py --layers 6 12 --processes 1 2 3 4

With --before, the code of an earlier checkout in FOLDER is measured besides. With --calibrated, the largest model is
also converted with calibration. Writes results/memory.json, .md and .png. The models take 2 GB and are deleted again.
With --wide, layers have many neurons and narrow attention, so that 30 of them weigh 8 GB and are soon solved.

With --limit, one model is converted in a control group that may have so much memory at most, mapped files included (as
root, with cgroups of version 1), by the weights alone or, with --calibrated, with calibration; it goes to
results/memory_limited.json and .md. What others have read of the model is in their groups, so it is written to disk and
dropped from memory before. --model names a folder to keep it in.

With --processes, the models are converted with calibration by so many processes, with and without --shard, and by one
by the weights alone (streamed). What the process held that held most goes to results/memory_processes.json and .md.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import COLORS, RESULTS, kept, machine, markdown, my_turn, write
from processes import anonymous, workers

from collab.figures.style import pyplot, save

SHAPES = {"": (1280, 20, 5120), "wide": (512, 8, 65536)}
"""Width, heads and neurons."""

OPTIONS = ("--rank", "0.25", "--max-sweeps", "2", "--no-compare", "--quiet")
QUICK = (*OPTIONS, "--form", "concat", "--no-speed")
"""With the form that is solved soonest."""

CALIBRATIONS = {
    "weights alone": ("--calibration", "none"),
    "calibrated": ("--calibration", "synthetic", "--calibration-samples", "32", "--refine", "none"),
}
IMPORTS = """
try:
    from collab.cli.libraries import import_libraries
except ImportError:  # an earlier checkout
    from collab.cli.running import import_libraries
import_libraries(0)
import collab.checkpoints.convert
"""


MAKE = """
import json, sys, torch, transformers
from safetensors.torch import save_file
folder, layers, width, heads, neurons = sys.argv[1], *map(int, sys.argv[2:])
config = transformers.BertConfig(
    hidden_size=width, num_hidden_layers=layers, num_attention_heads=heads, intermediate_size=neurons,
    architectures=["BertModel"], dtype="float32",
)
config.save_pretrained(folder)
with torch.device("meta"):
    state = transformers.BertModel(config).state_dict()
torch.manual_seed(0)
noise = torch.randn(2**22)
index, shard = {}, {}
for name, like in state.items():
    scale = 0.0 if name.endswith("bias") else 0.02
    if "LayerNorm.weight" in name:
        shard[name] = torch.ones(like.shape)
    elif like.numel() < len(noise):
        shard[name] = torch.randn(like.shape) * scale
    else:  # large ones repeat, which is fast
        shard[name] = (noise.repeat(-(-like.numel() // len(noise)))[: like.numel()] * scale).view(like.shape)
    if sum(tensor.nbytes for tensor in shard.values()) > 5e8 or name == list(state)[-1]:
        file = f"model-{len(index):05d}.safetensors"
        save_file(shard, f"{folder}/{file}", metadata={"format": "pt"})
        index |= dict.fromkeys(shard, file)
        shard = {}
with open(f"{folder}/model.safetensors.index.json", "w") as file:
    json.dump({"metadata": {}, "weight_map": index}, file)
"""


def make(folder: Path, layers: int, shape: str = "") -> int:
    """A random BERT in float32, in shards of 500 MB; returns the bytes of its weights.

    In a process of its own: what the system says of a process counts the memory of the one that started it.
    """
    if not folder.is_dir():
        subprocess.run([sys.executable, "-c", MAKE, str(folder), *map(str, (layers, *SHAPES[shape]))], check=True)
    return sum(file.stat().st_size for file in folder.glob("*.safetensors"))


def forget(folder: Path) -> None:
    """Has the system drop the files of a folder from its memory, where they count for nobody's limit."""
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


@dataclass(frozen=True)
class Peak:
    """What a process took: resident bytes, anonymous ones among them, seconds, and bytes of its control group."""

    resident: int
    anonymous: int
    seconds: float
    group: int | None


def peak(arguments: list[str], code: Path, limit: float | None = None) -> Peak:
    """What a Python process takes that uses the collab in a folder, in a control group of so many GB if wanted."""
    environment = os.environ | {"PYTHONPATH": str(code), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    start = time.perf_counter()
    with contextlib.nullcontext() if limit is None else limited(limit) as group:
        enter = None if group is None else lambda: (group / "cgroup.procs").write_text(str(os.getpid())) and None
        process = subprocess.Popen([sys.executable, *arguments], cwd=code, env=environment, preexec_fn=enter)
        anonymous, ended = 0, 0
        while not ended:
            with contextlib.suppress(OSError):
                for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
                    if line.startswith("RssAnon:"):
                        anonymous = max(anonymous, int(line.split()[1]) * 1024)
            time.sleep(0.02)
            ended, status, usage = os.wait4(process.pid, os.WNOHANG)
        most = None if group is None else int((group / "memory.max_usage_in_bytes").read_text())
    if status:
        raise SystemExit(f"{' '.join(arguments)} failed: {status}.")
    return Peak(usage.ru_maxrss * 1024, anonymous, time.perf_counter() - start, most)


@contextlib.contextmanager
def limited(gigabytes: float) -> Iterator[Path]:
    """A control group with so much memory, inside the one that this process is in."""
    groups = Path("/proc/self/cgroup").read_text().splitlines()
    own = next(line.split(":", 2)[2] for line in groups if ":memory:" in line)
    group = Path(f"/sys/fs/cgroup/memory{own}/collab.{os.getpid()}")
    group.mkdir()
    (group / "memory.limit_in_bytes").write_text(str(int(gigabytes * 1e9)))
    try:
        yield group
    finally:
        group.rmdir()


def within_limit(wanted: argparse.Namespace, code: Path) -> None:
    """Converts one model in a control group, and adds to results/memory_limited.json and .md."""
    shape, layers = ("wide" if wanted.wide else ""), wanted.layers[0]
    name = "calibrated" if wanted.calibrated else "weights alone"
    libraries = peak(["-c", IMPORTS], code)
    with tempfile.TemporaryDirectory(prefix="collab-memory.", dir=wanted.model and wanted.model.parent) as top:
        model = wanted.model or Path(top) / "model"
        row: dict[str, Any] = {"calibration": name, "layers": layers, "shape": shape, "limit": wanted.limit}
        row |= {"checkpoint": make(model, layers, shape), "libraries": libraries.anonymous}
        row |= {"moments": moments_bytes(layers, shape) * wanted.calibrated}
        forget(model)
        line = ["-m", "collab", "convert", str(model), f"{top}/out", *QUICK, *CALIBRATIONS[name]]
        row |= vars(peak(line, code, wanted.limit))
    with my_turn("memory_limited"):
        rows = [each for each in kept("memory_limited").get("rows", []) if limited_key(each) != limited_key(row)]
        rows = sorted([*rows, row], key=limited_key)
        names = ["", "layers", "checkpoint, MB", "sums, MB", "limit, MB", "most in the control group, MB"]
        names += ["libraries, MB", "held by the process besides, MB"]
        body = [
            [
                f"{each['calibration']}{', wide layers' if each['shape'] else ''}",
                str(each["layers"]),
                *(f"{each[key] / 1e6:.0f}" for key in ("checkpoint", "moments")),
                f"{each['limit'] * 1e3:.0f}",
                *(f"{value / 1e6:.0f}" for value in (each["group"], each["libraries"])),
                f"{(each['anonymous'] - each['libraries']) / 1e6:.0f}",
            ]
            for each in rows
        ]
        write("memory_limited", {"machine": machine(), "shapes": SHAPES, "rows": rows}, markdown(names, body))


def limited_key(row: dict[str, Any]) -> tuple[Any, ...]:
    """What was measured."""
    return row["calibration"] != "weights alone", row["shape"], row["layers"], row["limit"]


WAYS = {"whole": (*CALIBRATIONS["calibrated"],), "shared": (*CALIBRATIONS["calibrated"], "--shard")}
WAYS["streamed"] = CALIBRATIONS["weights alone"]


def held_by(count: int, line: list[str], code: Path) -> tuple[int, int]:
    """Anonymous bytes of the process that has most, of so many that convert together, and resident bytes."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count)] if count > 1 else []
    environment = os.environ | {"PYTHONPATH": str(code), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    process = subprocess.Popen([sys.executable, *launcher, *line], cwd=code, env=environment)
    most, resident = 0, 0
    while process.poll() is None:
        for worker in workers(process.pid, count):
            most, resident = max(most, anonymous(worker)), max(resident, anonymous(worker, "VmHWM"))
        time.sleep(0.02)
    if process.returncode:
        raise SystemExit(f"{' '.join(line)} failed.")
    return most, resident


def by_processes(counts: list[int], layers: list[int], ways: list[str], code: Path) -> None:
    """Measures conversions by several processes: calibrated with whole and with shared weights, and streamed."""
    libraries = peak(["-c", IMPORTS], code)
    for number in layers:
        with tempfile.TemporaryDirectory(prefix="collab-memory.") as top:
            checkpoint = make(Path(top) / "model", number)
            for way, count in ((way, count) for way in ways for count in counts):
                if (way == "shared") > (count > 1) or (way == "streamed") > (count == 1):
                    continue
                line = ["-m", "collab", "convert", f"{top}/model", f"{top}/out", *QUICK, *WAYS[way]]
                held, resident = held_by(count, line, code)
                shutil.rmtree(f"{top}/out")
                row = {"layers": number, "checkpoint": checkpoint, "processes": count, "way": way}
                row |= {"moments": moments_bytes(number) * (way != "streamed")}
                row |= {"held": held - libraries.anonymous, "resident": resident - libraries.resident}
                print(row, file=sys.stderr, flush=True)
                keep_divided(row)


def keep_divided(row: dict[str, Any]) -> None:
    """Writes the results, with one more of them."""
    with my_turn("memory_processes"):
        rows = [each for each in kept("memory_processes").get("rows", []) if "way" in each]
        rows = [each for each in rows if divided_key(each) != divided_key(row)] + [row]
        rows.sort(key=divided_key)
        names = ["weights and sums", "processes", "layers", "checkpoint, MB", "sums, MB", "held by a process, MB"]
        names += ["each layer more, MB", "resident, MB"]
        body = []
        for each in rows:
            fewer = [other for other in rows if divided_key(other)[:2] == divided_key(each)[:2]]
            first, more = fewer[0], each["layers"] - fewer[0]["layers"]
            numbers = [f"{each[name] / 1e6:.0f}" for name in ("checkpoint", "moments", "held")]
            slope = f"{(each['held'] - first['held']) / more / 1e6:.0f}" if more else ""
            resident = f"{each['resident'] / 1e6:.0f}"
            body.append([each["way"], str(each["processes"]), str(each["layers"]), *numbers, slope, resident])
        write("memory_processes", {"machine": machine(), "rows": rows}, markdown(names, body))


def divided_key(row: dict[str, Any]) -> tuple[int, int, int]:
    """What was measured."""
    return list(WAYS).index(row["way"]), row["processes"], row["layers"]


def moments_bytes(layers: int, shape: str = "") -> int:
    """Of the queries' and the keys' moments of every layer, fitted and held out: four matrices in float64."""
    return layers * 4 * 8 * SHAPES[shape][0] ** 2


def draw(rows: list[dict[str, Any]], file: Path) -> None:
    """Draws peak memory without libraries against the checkpoint's bytes."""
    figure, axis = pyplot().subplots(figsize=(5, 3.6), layout="constrained")
    top = max(row["checkpoint"] for row in rows if row["layers"] <= 24) / 1e9
    axis.plot([0, top], [0, top], color=COLORS["concat"], linestyle=":", label="the checkpoint itself")
    axis.plot([0, top], [0, top * 4 / 3], color=COLORS["concat"], linestyle="--", label="and one third more")
    for when, color, mark in (("before", COLORS["rival"], "s"), ("now", COLORS["collab"], "o")):
        points = [
            (row["checkpoint"] / 1e9, (row["peak"] - row["libraries"]) / 1e9)
            for row in rows
            if key(row)[:2] == (when, "weights alone") and row["layers"] <= 24
        ]
        if points:
            axis.plot(*zip(*sorted(points), strict=True), f"{mark}-", color=color, label=when)
    axis.set(xlabel="bytes of the checkpoint, GB", ylabel="peak memory without libraries, GB", xlim=0, ylim=0)
    axis.legend()
    save(figure, file)


def main() -> None:
    """Runs everything."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, nargs="*", default=[6, 12, 24])
    parser.add_argument("--before", type=Path, help="An earlier checkout.")
    parser.add_argument("--calibrated", action="store_true", help="Convert the largest model with calibration, too.")
    parser.add_argument("--limit", type=float, help="Gigabytes of memory at most.")
    parser.add_argument("--model", type=Path, help="A folder to keep the only model in, or to take it from.")
    parser.add_argument("--wide", action="store_true", help="Wide layers.")
    parser.add_argument("--processes", type=int, nargs="*", help="Numbers of processes.")
    parser.add_argument("--ways", nargs="*", choices=WAYS, default=list(WAYS), help="How they hold weights and sums.")
    wanted = parser.parse_args()
    here = Path(__file__).parents[1]
    if wanted.processes:
        by_processes(wanted.processes, wanted.layers, wanted.ways, here)
        return
    if wanted.limit is not None:
        within_limit(wanted, here)
        return
    rows: list[dict[str, Any]] = []
    for when, code in (("before", wanted.before), ("now", here)):
        if code is None:
            continue
        libraries = peak(["-c", IMPORTS], code)
        for layers in wanted.layers:
            for name, options in CALIBRATIONS.items():
                if name == "calibrated" and (not wanted.calibrated or layers != max(wanted.layers) or when == "before"):
                    continue
                with tempfile.TemporaryDirectory(prefix="collab-memory.") as top:
                    shape = "wide" if wanted.wide else ""
                    model = Path(top) / "model" if wanted.model is None else wanted.model
                    checkpoint = make(model, layers, shape)
                    line = ["-m", "collab", "convert", str(model), f"{top}/out", *OPTIONS, *options]
                    line += [] if when == "before" else ["--no-speed"]  # which earlier checkouts do not measure
                    forget(model)
                    most = peak(line, code)
                    shutil.rmtree(top, ignore_errors=True)
                    Path(top).mkdir()
                rows.append(
                    {
                        "when": when,
                        "calibration": name,
                        "layers": layers,
                        "shape": shape,
                        "checkpoint": checkpoint,
                        "libraries": libraries.resident,
                        "moments": 0 if name == "weights alone" else moments_bytes(layers, shape),
                        "peak": most.resident,
                        "anonymous": most.anonymous,
                        "anonymous_libraries": libraries.anonymous,
                        "seconds": round(most.seconds, 1),
                    }
                )
                print(rows[-1], file=sys.stderr, flush=True)
    with my_turn("memory"):
        measured = {key(row) for row in rows}
        rows = [row for row in kept("memory").get("rows", []) if key(row) not in measured] + rows
        rows.sort(key=lambda row: (row["calibration"] != "weights alone", row["when"], row["layers"]))
        table = markdown(
            [
                "",
                "layers",
                "checkpoint, MB",
                "libraries, MB",
                "moments, MB",
                "peak, MB",
                "beyond these, MB",
                "of the checkpoint",
                "held by the process, MB",
            ],
            [
                [
                    described(row),
                    str(row["layers"]),
                    *(f"{row[name] / 1e6:.0f}" for name in ("checkpoint", "libraries", "moments", "peak")),
                    f"{beyond(row) / 1e6:.0f}",
                    f"{beyond(row) / row['checkpoint']:.2f}",
                    f"{(row['anonymous'] - row['anonymous_libraries']) / 1e6:.0f}" if "anonymous" in row else "",
                ]
                for row in rows
            ],
        )
        write("memory", {"machine": machine(), "shapes": SHAPES, "rows": rows}, table)
        draw(rows, RESULTS / "memory.png")


def key(row: dict[str, Any]) -> tuple[Any, ...]:
    """What was measured."""
    return row["when"], row["calibration"], row["layers"], row.get("shape", "")


def described(row: dict[str, Any]) -> str:
    """What was measured, for the table."""
    return f"{row['when']}, {row['calibration']}{', wide layers' if row.get('shape') else ''}"


def beyond(row: dict[str, Any]) -> int:
    """What a conversion took besides the libraries, the checkpoint and the moments."""
    return int(row["peak"] - row["libraries"] - row["checkpoint"] - row["moments"])


if __name__ == "__main__":
    main()
