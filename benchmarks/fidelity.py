"""How much of an embedder's quality a conversion keeps, with no training: STS-B dev on the demo checkpoint.

Every row is one run of `collab convert` and then `SentenceTransformer(folder)`: Spearman correlation of cosine
similarities with the human scores, mean cosine to the original's embeddings of these sentences and of WikiText
paragraphs, mean score error on sentences that were not calibrated on, and seconds of the whole command. What is
calibrated is converted twice: without refinement, and with it, whose CPU seconds are told apart. Rivals: the paper's
setting (`parafac` from a random start) and per-head SVD, both on the weights alone.

    python benchmarks/fidelity.py           # at equal R, at equal parameters, folded content
    python benchmarks/fidelity.py --quick   # R = 128 and 64 only
    python benchmarks/fidelity.py --table   # write the table and the figure again, run nothing

Writes results/fidelity.json, .md and .png after every row. Only rows that are missing or out of date are run: to run
one again, delete it or its key "refined". What matters most is run first. About an hour and a half on two cores.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import tempfile
import time
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from common import COLORS, RESULTS, demo_folder, kept, machine, markdown, write
from judge import Judge, stsb_sentences

import collab

RANKS = (192, 128, 96, 64, 48, 32)
REFERENCE = collab.SolverOptions(method="tensorly", max_sweeps=100, tolerance=1e-6)
FORMS = ("concat", "cp", "tucker")


SETTING = ("form", "calibration", "rank", "params", "content", "solver")


def settings(quick: bool) -> list[dict[str, Any]]:
    """What is run, in the order of the table: form, calibration, and how much is kept."""
    ranks = (128, 64) if quick else RANKS
    rows: list[dict[str, Any]] = []
    for rank in ranks:
        rows += [{"form": form, "calibration": "none", "rank": rank} for form in FORMS]
        rows += [{"form": "cp", "calibration": "none", "rank": rank, "solver": "tensorly"}]
        for content in ({}, {"content": "folded"}):
            for data in ("synthetic", "real"):
                rows += [{"form": form, "calibration": data, "rank": rank} | content for form in FORMS]
    if not quick:
        for params in (0.35, 0.18):
            rows += [
                {"form": form, "calibration": data, "params": params} for data in ("none", "real") for form in FORMS
            ]
    return rows


def urgency(setting: dict[str, Any]) -> tuple[bool, ...]:
    """Sorts settings by what a run that is stopped early should have done."""
    main = setting.get("rank") in (128, 64)
    return ("content" in setting, "params" in setting, not main, setting["form"] != "cp")


def setting_of(row: dict[str, Any]) -> dict[str, Any]:
    """What a row was measured with."""
    return {name: row[name] for name in SETTING if name in row}


def outdated(row: dict[str, Any]) -> bool:
    """Whether a row is from before refinement, or before its calibration data changed."""
    return row["calibration"] != "none" and "refined" not in row


class Bench:
    """Converts, and measures what comes out."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.judge = Judge()
        rows = stsb_sentences()
        self.data = folder / "stsb-train.txt"
        self.data.write_text("\n".join(rows[:1024]))
        self.original = transformers.AutoModel.from_pretrained(demo_folder())
        tokenizer = transformers.AutoTokenizer.from_pretrained(demo_folder())
        self.moments = collab.calibrate(collab.Checkpoint(self.original, tokenizer), rows[1024:3072]).moments

    def row(self, setting: dict[str, Any]) -> dict[str, Any]:
        """One setting, converted without refinement, and with it where there is something to refine on."""
        row = self.conversion(setting, "none")
        if setting["calibration"] != "none":
            row["refined"] = self.conversion(setting, "auto")
        return row

    def conversion(self, setting: dict[str, Any], refine: Any) -> dict[str, Any]:
        """One conversion. The moments of a calibration are kept for the next one that uses the same data."""
        refining: list[float] = []

        def progress(what: str, done: int, total: int | None) -> None:
            if what == "refining":
                refining.append(time.process_time())

        data = setting["calibration"]
        source: Any = collab.DataSource(str(self.data)) if data == "real" else data
        cache = None if data == "none" else self.folder / f"{data}.safetensors"
        given = {name: value for name, value in setting.items() if name in ("form", "rank", "params", "content")}
        solver = REFERENCE if setting.get("solver") == "tensorly" else collab.SolverOptions()
        with tempfile.TemporaryDirectory() as folder:
            output = Path(folder) / "out"
            start = time.perf_counter()
            report = collab.checkpoints.convert(
                str(demo_folder()),
                output,
                collab.ConversionConfig(**given, solver=solver, refine=refine),
                calibration=collab.CalibrationRequest(source, cache=cache),
                progress=progress,
            ).report
            seconds = time.perf_counter() - start
            measured = self.judge.measure(output)
            converted = transformers.AutoModel.from_pretrained(output)
        errors = collab.score_errors(self.original, converted, self.moments)
        return setting | {
            "date": date.today().isoformat(),
            "ranks": [layer.rank for layer in report.layers],
            "query_key_ratio": report.query_key.ratio,
            "model_ratio": report.model.ratio,
            "weight_error": float(np.mean([layer.error for layer in report.layers])),
            "score_error": float(np.mean(list(errors.values()))),
            **measured,
            "solve_seconds": sum(layer.seconds for layer in report.layers),
            "refine_cpu_seconds": refining[-1] - refining[0] if refining else 0.0,
            "seconds": seconds,
        }


def main() -> None:
    """Runs what is missing or out of date."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--table", action="store_true")
    given = parser.parse_args()
    transformers.logging.disable_progress_bar()
    result = kept("fidelity")
    rows: list[dict[str, Any]] = result.get("rows", [])
    order = settings(quick=False)
    with tempfile.TemporaryDirectory() as folder:
        bench = None if given.table else Bench(Path(folder))
        for setting in sorted(settings(given.quick), key=urgency):
            if bench is None or any(setting_of(row) == setting and not outdated(row) for row in rows):
                continue
            new = bench.row(setting)
            rows = sorted([*(row for row in rows if setting_of(row) != setting), new], key=lambda r: place(r, order))
            result = {"machine": machine(), "original_spearman": bench.judge.spearman, "rows": rows}
            save(result)
            refined = new.get("refined", new)
            print(
                f"{setting}: {new['spearman']:.2f} {new['cosine']:.4f} {new['paragraphs']:.4f}, "
                f"refined {refined['spearman']:.2f} {refined['cosine']:.4f} {refined['paragraphs']:.4f}",
                flush=True,
            )
    save(result)


def place(row: dict[str, Any], order: list[dict[str, Any]]) -> int:
    """Where in the table a row stands."""
    return order.index(setting_of(row))


def save(result: dict[str, Any]) -> None:
    """Writes the results so far."""
    with contextlib.redirect_stdout(io.StringIO()):
        write("fidelity", result, table(result))
    draw(result)


def label(row: dict[str, Any]) -> str:
    """What a row is, in words."""
    if row.get("solver") == "tensorly":
        return "cp, parafac from a random start"
    data = {"none": "weights only", "synthetic": "synthetic", "real": "real text"}[row["calibration"]]
    return f"{row['form']}, {data}{', folded' if row.get('content') == 'folded' else ''}"


def table(result: dict[str, Any]) -> str:
    """The results as tables: at equal R and at equal parameters."""
    headings = ["", "R", "query/key left", "score error", "Spearman", "cosine", "paragraphs"]
    headings += [f"refined: {what}" for what in ("Spearman", "cosine", "paragraphs")]
    parts = [f"Original: Spearman {result['original_spearman']:.2f}."]
    if any(outdated(row) for row in result["rows"]):
        parts.append("† From before refinement and before the calibration data changed; not run again.")
    groups = {f"R = {rank}": [r for r in result["rows"] if r.get("rank") == rank] for rank in RANKS}
    for params in sorted({row["params"] for row in result["rows"] if "params" in row}, reverse=True):
        groups[f"{params:.0%} of the query/key parameters"] = [r for r in result["rows"] if r.get("params") == params]
    for title, rows in groups.items():
        if rows:
            cells = [
                [
                    label(row) + (" †" if outdated(row) else ""),
                    str(row["ranks"][0])
                    if len(set(row["ranks"])) == 1
                    else f"{min(row['ranks'])} to {max(row['ranks'])}",
                    f"{row['query_key_ratio']:.3f}",
                    f"{row['score_error']:.4f}",
                    *quality(row),
                    *refined(row),
                ]
                for row in rows
            ]
            parts += [f"### {title}", markdown(headings, cells)]
    return "\n\n".join(parts)


def quality(row: dict[str, Any]) -> list[str]:
    """Spearman and cosines; rows from before paragraphs were measured lack that cosine."""
    paragraphs = f"{row['paragraphs']:.4f}" if "paragraphs" in row else ""
    return [f"{row['spearman']:.2f}", f"{row['cosine']:.4f}", paragraphs]


def refined(row: dict[str, Any]) -> list[str]:
    """What refinement makes of a row."""
    after = row.get("refined")
    return ["", "", ""] if after is None else quality(after)


def draw(result: dict[str, Any]) -> None:
    """Cosine to the original against the parameters that are left."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(10, 4), layout="constrained", sharex=True)
    styles = {"none": ("--", "o"), "synthetic": (":", "s"), "real": ("-", "^")}
    curves = [("cp", "none", "tensorly")] + [(form, data, None) for data in styles for form in FORMS]
    for form, data, solver in curves:
        points = sorted(
            (row["query_key_ratio"], row["cosine"], row["spearman"])
            for row in result["rows"]
            if (row["form"], row["calibration"], row.get("solver")) == (form, data, solver)
            and "content" not in row
            and row["query_key_ratio"] <= 1.05
        )
        line, mark = styles[data]
        color = COLORS["rival"] if solver else COLORS[form]
        name = "parafac" if solver else f"{form}, {data if data != 'none' else 'weights only'}"
        for axis, index in zip(axes, (1, 2), strict=True):
            axis.plot(
                [p[0] for p in points], [p[index] for p in points], line, marker=mark, ms=4, color=color, label=name
            )
    axes[1].axhline(result["original_spearman"], color="black", linewidth=0.8)
    axes[0].set(xlabel="query/key parameters left", ylabel="cosine to the original", xscale="log", ylim=(0.7, 1.0))
    axes[1].set(xlabel="query/key parameters left", ylabel="STS-B dev Spearman ×100")
    ticks = [0.1, 0.2, 0.35, 0.5, 1.0]
    axes[0].set_xticks(ticks, [str(tick) for tick in ticks])
    for axis in axes:
        axis.minorticks_off()
    axes[0].legend(fontsize=7)
    figure.savefig(RESULTS / "fidelity.png", dpi=200)


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
