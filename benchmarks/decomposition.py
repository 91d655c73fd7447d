"""CP decomposition of attention layers: collab's solver against tensorly's dense `parafac` with the reference settings.

Both work on the same layers in the same run, in turn, so that the ratios hold on a noisy machine. The rival is what the
reference implementation of the paper calls: `parafac` from a uniform random start, tolerance 1e-6, 100 iterations, in
float32, on the dense tensor, whose forming is not counted. collab starts from the weights and does what
`collab.decomposition.decompose` does: a start in float64, then sweeps in float32. All errors are measured in float64.

    python benchmarks/decomposition.py

Writes results/decomposition.json, .md and .png. About six minutes on two cores.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import math
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import tensorly
import torch
from common import COLORS, RESULTS, demo_folder, machine, markdown, seconds, write
from safetensors import safe_open
from tensorly.decomposition import parafac

from collab.decomposition import (
    Factors,
    HeadTensor,
    Solution,
    SolverOptions,
    decompose_concat,
    decompose_cp,
    form_named,
)

LAYERS, RANKS, REPEATS = (0, 3, 5), (192, 96), 3
RIVAL_SWEEPS, RIVAL_TOLERANCE = 100, 1e-6


def demo_layer(number: int) -> HeadTensor:
    """A layer of the demo checkpoint, D = 384, H = 12."""
    with safe_open(demo_folder() / "model.safetensors", framework="pt") as file:
        prefix = f"encoder.layer.{number}.attention.self"
        query, key = (file.get_tensor(f"{prefix}.{name}.weight").double().T.contiguous() for name in ("query", "key"))
    return HeadTensor(query, key, 12)


def random_layer(width: int, heads: int) -> HeadTensor:
    """A layer of K = D with a falling spectrum that its heads share, for what real weights are not at hand for."""
    generator = torch.Generator().manual_seed(0)
    spectrum = torch.arange(1, width + 1, dtype=torch.float64) ** -0.5
    query, key = (
        torch.randn(width, width, generator=generator, dtype=torch.float64) * spectrum[:, None] for _ in range(2)
    )
    return HeadTensor(query, key, heads)


def solve(tensor: HeadTensor, rank: int, **given: Any) -> Solution:
    """collab's solver as `decompose` runs it: concatenated start, then accelerated ALS."""
    options = SolverOptions(**given)
    start = decompose_concat(tensor, rank)
    return decompose_cp(tensor.to(options.dtype), start.to(options.dtype), options)


def rival(dense: torch.Tensor, rank: int, sweeps: int = RIVAL_SWEEPS) -> tuple[Factors, list[tuple[float, float]]]:
    """The rival's factors, and after each of its sweeps the seconds gone by and its own figure for the error."""
    done: list[tuple[float, float]] = []
    start = time.perf_counter()
    with tensorly.backend_context("pytorch"):
        weights, (query, mixing, key) = parafac(
            dense,
            rank,
            init="random",
            tol=RIVAL_TOLERANCE,
            n_iter_max=sweeps,
            random_state=0,
            callback=lambda _, error: done.append((time.perf_counter() - start, float(error))),
        )
    factors = form_named("cp")(query=query.double(), key=key.double(), mixing=(mixing * weights).double())
    return factors, done


def race(number: int, rank: int) -> dict[str, Any]:
    """One layer at one rank: time to the rival's final error, error at equal time, error at the end."""
    tensor = demo_layer(number)
    dense = tensor.to(torch.float32).dense()
    solve(tensor, rank, max_sweeps=3)  # warm up
    ratios, rival_times, times = [], [], []
    for repeat in range(REPEATS):
        factors, done = rival(dense, rank)
        if repeat == 0:  # the same start each time, so the same end
            rival_error = factors.relative_error(tensor)
            long = solve(tensor, rank, tolerance=0.0, max_sweeps=2000)
            needed = next(sweep for sweep, error in enumerate(long.errors) if error <= rival_error)
        if needed:
            taken = seconds(partial(solve, tensor, rank, tolerance=0.0, max_sweeps=needed), repeats=3)
        else:
            taken = seconds(partial(decompose_concat, tensor, rank), repeats=3)
        rival_times.append(done[-1][0])
        times.append(taken)
        ratios.append(done[-1][0] / taken)
    start = time.perf_counter()
    final = solve(tensor, rank)
    final_seconds = time.perf_counter() - start
    per_sweep = final_seconds / final.sweeps
    affordable = min(len(long.errors) - 1, int(median(rival_times) / per_sweep))
    return {
        "layer": number,
        "rank": rank,
        "rival_error": rival_error,
        "rival_seconds": median(rival_times),
        "rival_sweeps": len(done),
        "start_error": final.errors[0],
        "seconds_to_rival_error": median(times),
        "sweeps_to_rival_error": needed,
        "speedup": median(ratios),
        "speedup_range": [min(ratios), max(ratios)],
        "error_at_equal_time": long.errors[affordable],
        "sweeps_at_equal_time": affordable,
        "final_error": final.factors.to(torch.float64).relative_error(tensor),
        "final_seconds": final_seconds,
        "final_sweeps": final.sweeps,
        "converged": final.converged,
        "degeneracy": final.factors.component_energy() / tensor.norm_squared(),
        "rival_degeneracy": factors.component_energy() / tensor.norm_squared(),
        "ridge": {label: ablate(tensor, rank, ridge) for label, ridge in (("on", SolverOptions.ridge), ("off", 0.0))},
        "errors": list(final.errors),
        "rival_curve": done,
    }


def ablate(tensor: HeadTensor, rank: int, ridge: float) -> dict[str, float]:
    """Error and degeneracy after 200 sweeps with a given ridge."""
    factors = solve(tensor, rank, ridge=ridge, tolerance=0.0, max_sweeps=200).factors.to(torch.float64)
    return {
        "error": factors.relative_error(tensor),
        "degeneracy": factors.component_energy() / tensor.norm_squared(),
    }


def sweep_seconds(width: int, heads: int, rank: int, with_rival: bool) -> dict[str, Any]:
    """Time of one sweep on a layer of a given shape."""
    tensor = random_layer(width, heads)
    start, single = decompose_concat(tensor, rank).to(torch.float32), tensor.to(torch.float32)

    def run(sweeps: int) -> float:
        begin = time.perf_counter()
        assert decompose_cp(single, start, SolverOptions(max_sweeps=sweeps, tolerance=0.0)).sweeps == sweeps
        return time.perf_counter() - begin

    run(1)
    ours, theirs = [], []
    dense = single.dense() if with_rival else None
    for _ in range(REPEATS):
        ours.append((run(9) - run(1)) / 8)
        if dense is not None:
            _, done = rival(dense, rank, sweeps=3)
            theirs.append(min(later - earlier for (earlier, _), (later, _) in itertools.pairwise(done)))
    result = {"width": width, "heads": heads, "rank": rank, "seconds": median(ours)}
    if theirs:
        result |= {"rival_seconds": median(theirs)}
        result |= {"speedup": median(their / our for their, our in zip(theirs, ours, strict=True))}
    return result


def peak_memory(who: str, width: int, heads: int, rank: int, layer: int | None) -> int:
    """Bytes that a few sweeps take at their peak beyond the inputs, measured in a process of its own.

    The inputs are the weights for collab and the dense tensor for the rival. Linux only: resident memory, whose peak
    the kernel is asked to forget before the solve.
    """
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import decomposition; decomposition.measure_memory(*sys.argv[2:])"
    )
    arguments = [who, str(width), str(heads), str(rank), "" if layer is None else str(layer)]
    done = subprocess.run(
        [sys.executable, "-c", code, str(Path(__file__).parent), *arguments], capture_output=True, text=True, check=True
    )
    return int(done.stdout)


def measure_memory(who: str, width: str, heads: str, rank: str, layer: str) -> None:
    """In the process of `peak_memory`: prints the bytes."""
    tensor = demo_layer(int(layer)) if layer else random_layer(int(width), int(heads))
    dense = tensor.to(torch.float32).dense() if who == "rival" else None
    tiny = random_layer(48, 4)
    solve(tiny, 12, max_sweeps=2)
    rival(tiny.to(torch.float32).dense(), 12, sweeps=2)  # libraries set themselves up
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    before = _status("VmRSS")
    if dense is None:
        solve(tensor, int(rank), max_sweeps=4)
    else:
        rival(dense, int(rank), sweeps=3)
    print(_status("VmHWM") - before)


def _status(field: str) -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024


def main() -> None:
    """Runs everything."""
    races = []
    for number in LAYERS:
        for rank in RANKS:
            races.append(race(number, rank))
            row = races[-1]
            print(f"layer {number} R={rank}: {row['speedup']:.0f} times faster to {row['rival_error']:.4f}", flush=True)
    geometric_mean = math.exp(sum(math.log(row["speedup"]) for row in races) / len(races))
    base = sweep_seconds(768, 12, 384, with_rival=True)
    memory = []
    for label, width, rank, layer in (
        ("demo layer 0", 384, 192, 0),
        ("demo layer 0", 384, 96, 0),
        ("BERT-base", 768, 384, None),
    ):
        ours, theirs = (peak_memory(who, width, 12, rank, layer) for who in ("collab", "rival"))
        memory.append({"shape": label, "rank": rank, "bytes": ours, "rival_bytes": theirs, "ratio": ours / theirs})
        print(f"{label} R={rank}: {ours / 1e6:.1f} MB against {theirs / 1e6:.1f} MB", flush=True)
    growth = {
        "width": [sweep_seconds(width, 12, 96, with_rival=width <= 768) for width in (192, 384, 768, 1536)],
        "heads": [sweep_seconds(384, heads, 96, with_rival=True) for heads in (3, 6, 12, 24, 48)],
        "rank": [sweep_seconds(384, 12, rank, with_rival=True) for rank in (24, 48, 96, 192, 288)],
    }
    result = {
        "machine": machine(),
        "races": races,
        "geometric_mean_speedup": geometric_mean,
        "bert_base_sweep": base,
        "memory": memory,
        "growth": growth,
    }
    write("decomposition", result, table(result))
    draw(result)


def megabytes(number: int) -> str:
    """Bytes for a table."""
    return f"{number / 1e6:.1f}"


def table(result: dict[str, Any]) -> str:
    """The results in words and tables."""
    rows = [
        [
            f"{row['layer']}, {row['rank']}",
            f"{row['rival_error']:.4f}",
            f"{row['rival_seconds']:.2f}",
            f"{row['seconds_to_rival_error']:.3f}",
            f"{row['speedup']:.0f}",
            f"{row['error_at_equal_time']:.4f}",
            f"{row['final_error']:.4f}",
            f"{row['final_seconds']:.2f}",
            f"{row['degeneracy']:.1f} / {row['rival_degeneracy']:.1f}",
        ]
        for row in result["races"]
    ]
    races = markdown(
        [
            "layer, R",
            "rival's error",
            "rival's s",
            "s to that error",
            "times faster",
            "error at equal time",
            "final error",
            "s",
            "degeneracy / rival's",
        ],
        rows,
    )
    ridge = markdown(
        ["after 200 sweeps: layer, R", "error", "degeneracy", "error without ridge", "degeneracy"],
        [
            [f"{row['layer']}, {row['rank']}"]
            + [f"{row['ridge'][label][key]:.4g}" for label in ("on", "off") for key in ("error", "degeneracy")]
            for row in result["races"]
        ],
    )
    memory = markdown(
        ["peak memory beyond the inputs", "R", "collab MB", "rival MB", "ratio"],
        [
            [
                point["shape"],
                str(point["rank"]),
                f"{point['bytes'] / 1e6:.1f}",
                f"{point['rival_bytes'] / 1e6:.1f}",
                f"{point['ratio']:.3f}",
            ]
            for point in result["memory"]
        ],
    )
    growth = markdown(
        ["seconds a sweep", "D", "H", "R", "collab", "rival", "times faster"],
        [
            [
                f"growing {name}",
                str(point["width"]),
                str(point["heads"]),
                str(point["rank"]),
                f"{point['seconds']:.4f}",
                f"{point['rival_seconds']:.3f}" if "rival_seconds" in point else "",
                f"{point['speedup']:.0f}" if "speedup" in point else "",
            ]
            for name, points in result["growth"].items()
            for point in points
        ],
    )
    base = result["bert_base_sweep"]
    return "\n\n".join(
        [
            races,
            f"Geometric mean: {result['geometric_mean_speedup']:.0f} times faster.",
            ridge,
            f"One sweep at BERT-base's shape (768×12×768, R = 384): {base['seconds']:.3f} s against "
            f"{base['rival_seconds']:.2f} s, {base['speedup']:.0f} times faster.",
            memory,
            growth,
        ]
    )


def draw(result: dict[str, Any]) -> None:
    """Error against time for every race, and the growth of a sweep."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(3, 3, figsize=(11, 10), layout="constrained")
    for axis, row in zip(axes.flat, result["races"], strict=False):
        count = len(row["errors"])
        times = [row["final_seconds"] * (index + 1) / count for index in range(count)]
        axis.plot(times, row["errors"], color=COLORS["collab"], label="collab")
        axis.plot(*zip(*row["rival_curve"], strict=True), color=COLORS["rival"], label="tensorly")
        lowest, highest = row["final_error"], max(row["start_error"], row["rival_error"])
        axis.set_ylim(lowest - 0.1 * (highest - lowest), highest + 0.5 * (highest - lowest))
        axis.axhline(row["rival_error"], color=COLORS["rival"], linewidth=0.8, linestyle=":")
        axis.set(
            xscale="log", title=f"layer {row['layer']}, R = {row['rank']}", xlabel="seconds", ylabel="relative error"
        )
    axes.flat[0].legend()
    for axis, (name, points) in zip(axes[2], result["growth"].items(), strict=True):
        for key, label in (("seconds", "collab"), ("rival_seconds", "rival")):
            known = [point for point in points if key in point]
            axis.loglog(
                [point[name] for point in known],
                [point[key] for point in known],
                "o-",
                color=COLORS[label],
                label=label,
            )
        letter = {"width": "D", "heads": "H", "rank": "R"}[name]
        axis.set(title=f"a sweep, growing {letter}", xlabel=letter, ylabel="seconds")
        axis.set_xticks([point[name] for point in points], [str(point[name]) for point in points])
        axis.set_ylim(5e-4, 0.5)
        axis.minorticks_off()
    figure.savefig(RESULTS / "decomposition.png", dpi=150)


if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1] == "--draw":
        saved = json.loads((RESULTS / "decomposition.json").read_text())
        write("decomposition", saved, table(saved))
        draw(saved)
    else:
        main()
