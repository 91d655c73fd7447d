"""How much of an embedder's quality a conversion keeps: STS-B dev on the demo checkpoint.

For every form and rank, `collab convert` and then `SentenceTransformer(folder)`: Spearman correlation of cosine
similarities with the human scores, and the mean cosine between the converted and the original embeddings. No training,
no calibration: what decomposing the weights alone gives. The last rows are the paper's setting, `parafac` from a random
start.

    python benchmarks/fidelity.py

Writes results/fidelity.json, .md and .png. About five minutes on two cores.
"""

from __future__ import annotations

import csv
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from common import COLORS, RESULTS, demo_folder, machine, markdown, shared_data, write
from scipy.stats import spearmanr
from sentence_transformers import SentenceTransformer

import collab

RANKS = (192, 128, 64)
REFERENCE = collab.SolverOptions(method="tensorly", max_sweeps=100, tolerance=1e-6)


def pairs() -> tuple[list[str], list[str], list[float]]:
    """STS-B dev: two sentences and a score from 0 to 5."""
    with (shared_data() / "data" / "stsb" / "dev.csv").open(newline="", encoding="utf-8") as file:
        first, second, score = zip(*csv.reader(file), strict=True)
    return list(first), list(second), [float(one) for one in score]


def evaluate(folder: Path) -> tuple[float, np.ndarray]:
    """Spearman correlation times 100, and the embeddings."""
    first, second, scores = pairs()
    embeddings = SentenceTransformer(str(folder), device="cpu").encode(first + second, batch_size=64)
    a, b = np.split(embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True), 2)
    return 100 * float(spearmanr((a * b).sum(axis=1), scores).statistic), np.concatenate([a, b])


def main() -> None:
    """Runs everything."""
    transformers.logging.disable_progress_bar()
    original, reference = evaluate(demo_folder())
    rows: list[dict[str, Any]] = []
    settings = [(form, rank, collab.SolverOptions()) for rank in RANKS for form in ("concat", "cp", "tucker")]
    settings += [("cp", rank, REFERENCE) for rank in RANKS]
    for form, rank, solver in settings:
        with tempfile.TemporaryDirectory() as folder:
            start = time.perf_counter()
            config = collab.ConversionConfig(rank=rank, form=form, solver=solver)
            report = collab.convert_checkpoint(str(demo_folder()), Path(folder) / "out", config)
            seconds = time.perf_counter() - start
            spearman, embeddings = evaluate(Path(folder) / "out")
        rows.append(
            {
                "form": form,
                "solver": solver.method,
                "rank": rank,
                "query_key_ratio": report.query_key.ratio,
                "model_ratio": report.model.ratio,
                "error": float(np.mean([layer.error for layer in report.layers])),
                "spearman": spearman,
                "cosine": float((embeddings * reference).sum(axis=1).mean()),
                "seconds": seconds,
            }
        )
        print(f"{form} {solver.method} R={rank}: {spearman:.2f}", flush=True)
    result = {"machine": machine(), "original_spearman": original, "rows": rows}
    write("fidelity", result, table(result))
    draw(result)


def table(result: dict[str, Any]) -> str:
    """The results as a table."""
    rows = [["original", "", "1.000", "1.000", "", f"{result['original_spearman']:.2f}", "1.0000", ""]]
    rows += [
        [
            one["form"] + (" (parafac, random start)" if one["solver"] == "tensorly" else ""),
            str(one["rank"]),
            f"{one['query_key_ratio']:.3f}",
            f"{one['model_ratio']:.3f}",
            f"{one['error']:.4f}",
            f"{one['spearman']:.2f}",
            f"{one['cosine']:.4f}",
            f"{one['seconds']:.1f}",
        ]
        for one in result["rows"]
    ]
    headings = [
        "form",
        "R of 384",
        "query/key parameters left",
        "of the model",
        "mean error",
        "STS-B dev Spearman",
        "cosine",
        "s",
    ]
    return markdown(headings, rows)


def draw(result: dict[str, Any]) -> None:
    """Spearman against the parameters that are left."""
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(6, 4), layout="constrained")
    axis.axhline(result["original_spearman"], color="black", linewidth=0.8, linestyle=":", label="original")
    curves = [("concat", "structured"), ("cp", "structured"), ("tucker", "structured"), ("cp", "tensorly")]
    for form, solver in curves:
        points = [one for one in result["rows"] if (one["form"], one["solver"]) == (form, solver)]
        color = COLORS["rival"] if solver == "tensorly" else COLORS[form]
        label = "cp (parafac)" if solver == "tensorly" else form
        axis.plot(
            [one["query_key_ratio"] for one in points],
            [one["spearman"] for one in points],
            "o-",
            color=color,
            label=label,
        )
    axis.set(xlabel="query/key parameters left", ylabel="STS-B dev Spearman ×100", xscale="log")
    ticks = [0.2, 0.5, 1.0, 2.0]
    axis.set_xticks(ticks, [str(tick) for tick in ticks])
    axis.minorticks_off()
    axis.legend()
    figure.savefig(RESULTS / "fidelity.png", dpi=150)


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
