"""What calibration costs and what its choices are worth, on the demo checkpoint.

- `collab plan` against one calibration pass, in time; its predicted score errors against those of the conversion.
- Peak memory of a calibrated conversion beyond the model's own, against the size of the moments.
- Ranks by layer against the same rank everywhere, at the same total of parameters.
- Calibration in order against calibration on the original.
- Random vocabulary against real text, short and long.
- The least error that a Tucker form can have, whatever solves it, against concat with as many parameters.

    python benchmarks/calibration.py [plan] [memory] [allocation] [order] [data] [bound]

Writes results/calibration.json and .md. About ten minutes on two cores.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import torch
import transformers
from common import RESULTS, demo_folder, kept, machine, markdown, write
from judge import paragraphs, stsb_sentences

import collab
from collab.data import features
from collab.decomposition import decompose
from collab.reparametrization.model import LayerProblems

FORMS = ("concat", "cp", "tucker")


class Model:
    """The demo checkpoint, and cosines of a conversion's embeddings with the original's."""

    def __init__(self) -> None:
        self.model = transformers.AutoModel.from_pretrained(demo_folder()).eval()
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(demo_folder())
        self._embeddings: dict[int, torch.Tensor] = {}

    def calibrate(self, data: Any, **settings: Any) -> collab.Calibration:
        """A calibration on rows of text or on random vocabulary."""
        options = collab.CalibrationOptions(**settings)
        return collab.calibrate(collab.Checkpoint(self.model, self.tokenizer), data, options=options)

    @torch.no_grad()
    def embed(self, model: Any, rows: list[str]) -> torch.Tensor:
        """Mean-pooled, normalized."""
        embeddings = torch.empty(len(rows), 384)
        order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
        for start in range(0, len(rows), 32):
            piece = order[start : start + 32]
            batch = self.tokenizer(
                [rows[i] for i in piece], padding=True, truncation=True, max_length=256, return_tensors="pt"
            )
            states, mask = model(**batch).last_hidden_state, batch["attention_mask"].unsqueeze(-1)
            embeddings[piece] = torch.nn.functional.normalize((states * mask).sum(1), dim=1)
        return embeddings

    def cosine(self, converted: Any, rows: list[str]) -> float:
        """Mean cosine of a converted model's embeddings with the original's."""
        if id(rows) not in self._embeddings:
            self._embeddings[id(rows)] = self.embed(self.model, rows)
        return float((self.embed(converted.eval(), rows) * self._embeddings[id(rows)]).sum(1).mean())

    def convert(self, calibration: collab.Calibration | None, **config: Any) -> collab.Checkpoint:
        """A conversion in memory."""
        return collab.convert(
            self.model, collab.ConversionConfig(**{"refine": "none"} | config), calibration=calibration
        )


def short_words(demo: Model) -> collab.Calibration:
    """A calibration on random words in rows of 16 tokens, what the default was before."""
    with patch.object(features, "_LENGTHS", (16,)):
        return demo.calibrate("synthetic")


def plan() -> dict[str, Any]:
    """Time of a plan against a calibration pass, and its predictions against conversions."""
    demo = Model()
    demo.calibrate("synthetic", samples=64)  # warm
    start = time.perf_counter()
    calibration = demo.calibrate("synthetic")
    calibrated = time.perf_counter()
    planned = collab.plan(demo.model, calibration)
    done = time.perf_counter()
    rows = []
    for option in planned.options:
        report = demo.convert(calibration, rank=option.rank, form=option.form).report
        for layer, predicted in zip(report.layers, option.layer_errors, strict=True):
            rows.append(
                {
                    "form": option.form,
                    "rank": option.rank,
                    "layer": layer.name,
                    "predicted": predicted,
                    "measured": layer.score_error,
                    "deviation": predicted / layer.score_error - 1,
                }
            )
    return {
        "calibration_seconds": calibrated - start,
        "plan_seconds": done - start,
        "ratio": (done - start) / (calibrated - start),
        "predictions": rows,
    }


def memory() -> dict[str, Any]:
    """Peak memory of a calibrated conversion beyond the model's own, in a process of its own."""
    code = """
import json, sys, threading, time
import torch, transformers
import collab
from common import demo_folder
transformers.logging.disable_progress_bar()
def anonymous():  # not the pages of the checkpoint's file, which are the model's own
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("RssAnon"))
model = transformers.AutoModel.from_pretrained(demo_folder()).eval()
tokenizer = transformers.AutoTokenizer.from_pretrained(demo_folder())
with torch.no_grad():
    model(**tokenizer(["warm " * 16] * 32, return_tensors="pt"))
torch.linalg.eigh(torch.randn(384, 384, dtype=torch.float64))
before, peak, stop = anonymous(), [0], threading.Event()
def watch():
    while not stop.is_set():
        peak[0] = max(peak[0], anonymous())
        time.sleep(0.002)
thread = threading.Thread(target=watch); thread.start()
options = collab.CalibrationOptions(samples=int(sys.argv[1]))
calibration = collab.calibrate(collab.Checkpoint(model, tokenizer), options=options)
calibrated = peak[0]
size = sum(t.numel() * t.element_size() for part in (calibration.moments, calibration.held_out_moments)
           for moments in part.values() for t in moments.tensors().values())
collab.convert(model, collab.ConversionConfig(rank=128, refine="none"), calibration=calibration, inplace=True)
stop.set(); thread.join()
figures = {"moments": size, "calibration": calibrated - before, "peak": peak[0] - before}
print(json.dumps({"samples": int(sys.argv[1]), **figures}))
"""
    rows = []
    for samples in (256, 1024, 4096):
        command = [sys.executable, "-c", code, str(samples)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=RESULTS.parent)
        rows.append(json.loads(done.stdout.splitlines()[-1]))
        rows[-1]["ratio"] = rows[-1]["peak"] / rows[-1]["moments"]
    return {"rows": rows}


def allocation() -> dict[str, Any]:
    """Balanced ranks against uniform ones at the same total, judged on sentences that neither was chosen on."""
    demo, test, rest = Model(), stsb_sentences("dev")[:1000], stsb_sentences("train")
    rows = []
    for name, data in (("real", rest[:1024]), ("synthetic", "synthetic")):
        calibration = demo.calibrate(data)
        for params in (0.35, 0.18):
            for form in FORMS:
                row: dict[str, Any] = {"calibration": name, "params": params, "form": form}
                for kind in ("uniform", "balanced"):
                    conversion = demo.convert(calibration, params=params, form=form, allocation=kind)
                    row[kind] = demo.cosine(conversion.model, test)
                    row[f"{kind}_ranks"] = [layer.rank for layer in conversion.report.layers]
                    row[f"{kind}_parameters"] = conversion.report.query_key.after
                rows.append(row)
                print(row, flush=True)
    return {"rows": rows}


def order() -> dict[str, Any]:
    """Layers calibrated in order on the partly converted model, against all of them on the original."""
    demo, test, train = Model(), stsb_sentences("dev")[:1000], stsb_sentences("train")[:1024]
    plain = demo.calibrate(train)
    rows = []
    for form, rank in (("cp", 128), ("cp", 64), ("tucker", 64), ("concat", 128)):
        config = collab.ConversionConfig(rank=rank, form=form, refine="none")
        start = time.perf_counter()
        ordered = collab.calibrate_in_order(collab.Checkpoint(demo.model, demo.tokenizer), config, train)
        seconds = time.perf_counter() - start
        cosines = [
            demo.cosine(collab.convert(demo.model, config, calibration=calibration).model, test)
            for calibration in (plain, ordered)
        ]
        rows.append({"form": form, "rank": rank, "original": cosines[0], "in_order": cosines[1], "seconds": seconds})
        print(rows[-1], flush=True)
    return {"rows": rows}


def data() -> dict[str, Any]:
    """What a conversion is calibrated on, and what it is judged on: short sentences and long paragraphs."""
    demo, train, wiki = Model(), stsb_sentences("train"), paragraphs()
    judged = {"sentences": stsb_sentences("dev")[:600], "paragraphs": wiki[-150:]}
    sources: dict[str, Callable[[], collab.Calibration | None]] = {
        "weights only": lambda: None,
        "synthetic, rows of 16 words": lambda: short_words(demo),
        "synthetic": lambda: demo.calibrate("synthetic"),
        "64 sentences": lambda: demo.calibrate(train[:64]),
        "256 sentences": lambda: demo.calibrate(train[:256]),
        "1024 sentences": lambda: demo.calibrate(train[:1024]),
        "4096 sentences": lambda: demo.calibrate(train[:4096], samples=4096),
        "200 paragraphs": lambda: demo.calibrate(wiki[:200], max_length=256),
        "512 sentences and 100 paragraphs": lambda: demo.calibrate(train[:512] + wiki[:100], max_length=256),
    }
    rows = kept("calibration").get("data", {}).get("rows", [])
    for name, source in sources.items():
        missing = [
            form for form in ("cp", "concat") if (name, form) not in {(r["calibration"], r["form"]) for r in rows}
        ]
        calibration = source() if missing else None
        for form in missing:
            model = demo.convert(calibration, rank=128, form=form, refine="none").model
            rows.append(
                {"calibration": name, "form": form, "rank": 128}
                | {what: demo.cosine(model, texts) for what, texts in judged.items()}
            )
            print(rows[-1], flush=True)
    return {"rows": sorted(rows, key=lambda row: list(sources).index(row["calibration"]))}


def bound() -> dict[str, Any]:
    """Tucker at R = 64 has as many parameters as concat at R = 128.

    The error of any R shared query dimensions alone, of cores as large as they like, is at least what the leading R
    eigenvectors of Σ_h A_h A_hᵀ leave, and likewise for the keys; so is that of every Tucker form.
    """
    demo = Model()
    calibration = demo.calibrate(stsb_sentences("train")[:1024])
    rows = []
    for name, problem in LayerProblems(demo.model, calibration.moments, demo.model.device).items():
        tensor = problem.whitened
        left = 0.0
        for factor, other in ((tensor.query, tensor.key), (tensor.key, tensor.query)):
            heads = tensor.by_head(other.T)  # (H, d, D)
            weighted = (tensor.by_head(factor.T).mT @ (heads @ heads.mT)).movedim(0, 1).reshape(factor.shape)
            left = max(left, float(torch.linalg.eigvalsh(weighted @ factor.T)[:-64].sum()))
        least = (left / tensor.norm_squared()) ** 0.5
        errors = {form: decompose(tensor, form, rank).error for form, rank in (("tucker", 64), ("concat", 128))}
        rows.append({"layer": name, "tucker_at_least": least} | errors)
    return {"rows": rows}


PARTS = {"plan": plan, "memory": memory, "allocation": allocation, "order": order, "data": data, "bound": bound}


def main() -> None:
    """Runs the parts that are named, or all, and writes all results that there are."""
    transformers.logging.disable_progress_bar()
    result = kept("calibration")
    for name in sys.argv[1:] or PARTS:
        result[name] = PARTS[name]() | {"machine": machine()}
        write("calibration", result, table(result))


def table(result: dict[str, Any]) -> str:
    """Every part as a table."""
    parts = []
    if "plan" in result:
        measured = result["plan"]
        parts.append("### Predicted score errors")
        parts.append(
            f"Plan: {measured['plan_seconds']:.1f} s, {measured['ratio']:.2f} times the calibration pass in it "
            f"({measured['calibration_seconds']:.1f} s)."
        )
        groups: dict[tuple[str, int], list[float]] = {}
        for row in measured["predictions"]:
            groups.setdefault((row["form"], row["rank"]), []).append(row["deviation"])
        cells = [
            [form, str(rank), f"{min(values):+.1%}", f"{max(values):+.1%}"] for (form, rank), values in groups.items()
        ]
        parts.append(markdown(["form", "R", "predicted / measured, least", "most"], cells))
    if "memory" in result:
        parts.append("### Peak memory")
        cells = [
            [
                str(row["samples"]),
                *(f"{row[name] / 1e6:.1f}" for name in ("moments", "calibration", "peak")),
                f"{row['ratio']:.2f}",
            ]
            for row in result["memory"]["rows"]
        ]
        parts.append(markdown(["rows", "moments MB", "calibration peak MB", "peak MB", "peak / moments"], cells))
    if "allocation" in result:
        parts.append("### Ranks for each layer")
        cells = [
            [
                row["form"],
                row["calibration"],
                f"{row['params']:.0%}",
                f"{row['uniform']:.4f}",
                f"{row['balanced']:.4f}",
                " ".join(map(str, row["balanced_ranks"])),
            ]
            for row in result["allocation"]["rows"]
        ]
        parts.append(
            markdown(["form", "calibration", "query/key left", "uniform", "balanced", "balanced ranks"], cells)
        )
    if "order" in result:
        parts.append("### Layers calibrated in order")
        cells = [
            [row["form"], str(row["rank"]), f"{row['original']:.4f}", f"{row['in_order']:.4f}"]
            for row in result["order"]["rows"]
        ]
        parts.append(markdown(["form", "R", "on the original", "in order"], cells))
    if "data" in result:
        parts.append("### Data to calibrate on")
        cells = [
            [row["calibration"], row["form"], f"{row['sentences']:.4f}", f"{row['paragraphs']:.4f}"]
            for row in result["data"]["rows"]
        ]
        parts.append(markdown(["calibrated on", "form, R = 128", "cosine on sentences", "on paragraphs"], cells))
    if "bound" in result:
        parts.append("### Least score error of Tucker")
        cells = [
            [row["layer"], *(f"{row[name]:.3f}" for name in ("tucker_at_least", "tucker", "concat"))]
            for row in result["bound"]["rows"]
        ]
        parts.append(markdown(["layer", "any Tucker, R = 64, at least", "ours", "concat, R = 128"], cells))
    return "\n\n".join(parts)


if __name__ == "__main__":
    main()
