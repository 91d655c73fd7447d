"""Peak memory of `collab convert` against the bytes of the checkpoint, for random models of one width and more layers.

Each conversion is a process of its own; the system says how much of its memory was resident at most. That includes
the pages of the weights' files, which transformers maps into memory, and the libraries, whose share is measured by a
process that only imports them.

    python benchmarks/memory.py [--layers 6 12 24] [--before FOLDER] [--calibrated]

With --before, the code of an earlier checkout in FOLDER is measured besides. With --calibrated, the largest model is
also converted with calibration. Writes results/memory.json, .md and .png. The models take 2 GB, and are deleted again.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from common import COLORS, RESULTS, kept, machine, markdown, my_turn, write

from collab.figures.style import pyplot, save

WIDTH, HEADS = 1280, 20
OPTIONS = ("--rank", "320", "--max-sweeps", "2", "--no-compare", "--quiet")
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


MAKE = f"""
import sys, torch, transformers
folder, layers = sys.argv[1], int(sys.argv[2])
config = transformers.BertConfig(
    hidden_size={WIDTH}, num_hidden_layers=layers, num_attention_heads={HEADS}, intermediate_size={4 * WIDTH}
)
torch.manual_seed(0)
transformers.logging.disable_progress_bar()
transformers.BertModel(config).save_pretrained(folder)
"""


def make(folder: Path, layers: int) -> int:
    """A random BERT in float32; returns the bytes of its weights.

    In a process of its own: what the system says of a process counts the memory of the one that started it.
    """
    subprocess.run([sys.executable, "-c", MAKE, str(folder), str(layers)], check=True)
    return (folder / "model.safetensors").stat().st_size


def peak(arguments: list[str], code: Path) -> tuple[int, float]:
    """Resident bytes at most, and seconds, of a Python process that uses the collab in a folder."""
    environment = os.environ | {"PYTHONPATH": str(code), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    start = time.perf_counter()
    process = subprocess.Popen([sys.executable, *arguments], cwd=code, env=environment)  # which is first on the path
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(arguments)} failed.")
    return usage.ru_maxrss * 1024, time.perf_counter() - start


def moments_bytes(layers: int) -> int:
    """Of the queries' and the keys' moments of every layer, fitted and held out: four matrices in float64."""
    return layers * 4 * 8 * WIDTH**2


def draw(rows: list[dict[str, Any]], file: Path) -> None:
    """Draws peak memory without libraries against the checkpoint's bytes."""
    figure, axis = pyplot().subplots(figsize=(5, 3.6), layout="constrained")
    top = max(row["checkpoint"] for row in rows) / 1e9
    axis.plot([0, top], [0, top], color=COLORS["concat"], linestyle=":", label="the checkpoint itself")
    axis.plot([0, top], [0, top * 4 / 3], color=COLORS["concat"], linestyle="--", label="and one third more")
    for when, color, mark in (("before", COLORS["rival"], "s"), ("now", COLORS["collab"], "o")):
        points = [
            (row["checkpoint"] / 1e9, (row["peak"] - row["libraries"]) / 1e9)
            for row in rows
            if row["when"] == when and row["calibration"] == "weights alone"
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
    wanted = parser.parse_args()
    here = Path(__file__).parents[1]
    rows: list[dict[str, Any]] = []
    for when, code in (("before", wanted.before), ("now", here)):
        if code is None:
            continue
        libraries, _ = peak(["-c", IMPORTS], code)
        for layers in wanted.layers:
            for name, options in CALIBRATIONS.items():
                if name == "calibrated" and (not wanted.calibrated or layers != max(wanted.layers) or when == "before"):
                    continue
                with tempfile.TemporaryDirectory(prefix="collab-memory.") as top:
                    checkpoint = make(Path(top) / "model", layers)
                    line = ["-m", "collab", "convert", f"{top}/model", f"{top}/out", *OPTIONS, *options]
                    line += [] if when == "before" else ["--no-speed"]  # which earlier checkouts do not measure
                    most, seconds = peak(line, code)
                    shutil.rmtree(top, ignore_errors=True)
                    Path(top).mkdir()
                rows.append(
                    {
                        "when": when,
                        "calibration": name,
                        "layers": layers,
                        "checkpoint": checkpoint,
                        "libraries": libraries,
                        "moments": 0 if name == "weights alone" else moments_bytes(layers),
                        "peak": most,
                        "seconds": round(seconds, 1),
                    }
                )
                print(rows[-1], file=sys.stderr, flush=True)
    with my_turn("memory"):
        measured = {(row["when"], row["calibration"], row["layers"]) for row in rows}
        earlier = kept("memory").get("rows", [])
        rows = [row for row in earlier if (row["when"], row["calibration"], row["layers"]) not in measured] + rows
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
            ],
            [
                [
                    f"{row['when']}, {row['calibration']}",
                    str(row["layers"]),
                    *(f"{row[name] / 1e6:.0f}" for name in ("checkpoint", "libraries", "moments", "peak")),
                    f"{beyond(row) / 1e6:.0f}",
                    f"{beyond(row) / row['checkpoint']:.2f}",
                ]
                for row in rows
            ],
        )
        write("memory", {"machine": machine(), "width": WIDTH, "heads": HEADS, "rows": rows}, table)
        draw(rows, RESULTS / "memory.png")


def beyond(row: dict[str, Any]) -> int:
    """What a conversion took besides the libraries, the checkpoint and the moments."""
    return int(row["peak"] - row["libraries"] - row["checkpoint"] - row["moments"])


if __name__ == "__main__":
    main()
