"""A model whose one attention layer serves twelve passes: a real ALBERT on chemical reactions, with no training.

For every form and rank, on 128 reactions that no conversion has seen, 15 % of the tokens masked: accuracy on the masked
tokens, and the Kullback-Leibler divergence of the predictions from the original's, without refinement and with it.
Moments are pooled over the passes.

    python benchmarks/albert.py

Writes results/albert.json and .md. About ten minutes on two cores.
"""

from __future__ import annotations

import csv
import re
import time
from pathlib import Path
from typing import Any

import torch
import transformers
from common import machine, markdown, shared_data, write
from torch import Tensor
from torch.nn import functional

import collab

# The tokenizer that the checkpoint was trained with; its files alone do not describe it.
TOKEN = re.compile(
    r"(\[[^\]]+]|Br?|Cl?|N|O|S|P|F|I|b|c|n|o|s|p|\(|\)|\.|=|#|-|\+|\\|\/|:|~|@|\?|>>?|\*|\$|\%[0-9]{2}|[0-9])"
)
RANKS = (128, 64)
Batch = dict[str, Tensor]


def checkpoint() -> Path:
    """The folder of the model."""
    return shared_data() / "checkpoints" / "rxnmapper-albert"


def tokens() -> list[str]:
    """The vocabulary, in order."""
    return (checkpoint() / "vocab.txt").read_text().rstrip("\n").split("\n")


def reactions(limit: int = 256) -> tuple[list[list[int]], int]:
    """Token ids of the reactions that are not too long, and the id of the mask."""
    vocabulary = {token: number for number, token in enumerate(tokens())}
    with (shared_data() / "data" / "reactions" / "reactions.csv").open(newline="") as file:
        rows = [["[CLS]", *TOKEN.findall(row["rxn"]), "[SEP]"] for row in csv.DictReader(file)]
    ids = [[vocabulary.get(token, vocabulary["[UNK]"]) for token in row] for row in rows if len(row) <= limit]
    return ids, vocabulary["[MASK]"]


def batches(rows: list[list[int]], size: int = 8) -> list[Batch]:
    """Padded batches, rows of like length together."""
    rows, padded = sorted(rows, key=len), []
    for start in range(0, len(rows), size):
        piece = rows[start : start + size]
        longest = max(map(len, piece))
        ids = torch.tensor([row + [0] * (longest - len(row)) for row in piece])
        padded.append({"input_ids": ids, "attention_mask": (ids != 0).long()})
    return padded


def masked(batch: Batch, mask: int, generator: torch.Generator) -> tuple[Batch, Tensor]:
    """A batch with some tokens masked, and which."""
    ids = batch["input_ids"]
    chosen = (torch.rand(ids.shape, generator=generator) < 0.15) & (ids > 15)
    return {**batch, "input_ids": ids.masked_fill(chosen, mask)}, chosen


def divided() -> tuple[list[list[int]], list[tuple[Batch, Batch, Tensor]]]:
    """Reactions to learn from; and 128 in batches to judge by, whole and masked, with the places that are masked."""
    rows, mask = reactions()
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(len(rows), generator=generator).tolist()
    test = [(batch, *masked(batch, mask, generator)) for batch in batches([rows[i] for i in order[:128]])]
    return [rows[i] for i in order[128:]], test


@torch.no_grad()
def judge(model: Any, original: Any, data: list[tuple[Batch, Batch, Tensor]]) -> dict[str, float]:
    """Accuracy on masked tokens, and divergence from the original there."""
    right = count = 0
    divergence = 0.0
    for whole, given, chosen in data:
        logits, reference = model(**given).logits[chosen], original(**given).logits[chosen]
        right += int((logits.argmax(-1) == whole["input_ids"][chosen]).sum())
        count += int(chosen.sum())
        divergence += float(
            functional.kl_div(logits.log_softmax(-1), reference.log_softmax(-1), log_target=True, reduction="sum")
        )
    return {"accuracy": right / count, "kl": divergence / count, "tokens": count}


def main() -> None:
    """Runs everything."""
    transformers.logging.disable_progress_bar()
    original = transformers.AutoModelForMaskedLM.from_pretrained(checkpoint()).eval()
    rows, test = divided()
    data = batches(rows)
    calibrations = {
        "none": None,
        "synthetic": collab.calibrate(original, options=collab.CalibrationOptions(samples=512)),
        "reactions": collab.calibrate(original, data),
    }
    results = [
        {"form": "original", "rank": 256, "calibration": "", "query_key_ratio": 1.0} | judge(original, original, test)
    ]
    for rank in RANKS:
        for name, calibration in calibrations.items():
            for form in ("concat", "cp", "tucker"):
                row: dict[str, Any] = {"form": form, "rank": rank, "calibration": name}
                for refine in ("none",) if calibration is None else ("none", "auto"):
                    start = time.process_time()
                    config = collab.ConversionConfig(rank=rank, form=form, refine=refine)
                    conversion = collab.convert(original, config, calibration=calibration)
                    measured = {"cpu_seconds": time.process_time() - start}
                    measured |= judge(conversion.model.eval(), original, test)
                    layer = conversion.report.layers[0]
                    if refine == "none":
                        row |= {"query_key_ratio": conversion.report.query_key.ratio}
                        row |= {"score_error": layer.score_error, "held_out_error": layer.held_out_error} | measured
                    else:
                        row["refined"] = measured
                results.append(row)
                print(row, flush=True)
                write("albert", {"machine": machine(), "rows": results}, table(results))


def table(results: list[dict[str, Any]]) -> str:
    """The results as a table."""
    cells = [
        [
            row["form"],
            str(row["rank"]),
            row["calibration"],
            f"{row['query_key_ratio']:.3f}",
            f"{row['held_out_error']:.4f}" if row.get("held_out_error") else "",
            f"{row['accuracy']:.4f}",
            f"{row['kl']:.4f}",
            *(f"{row['refined'][name]:.4f}" if "refined" in row else "" for name in ("accuracy", "kl")),
        ]
        for row in results
    ]
    headings = ["form", "R of 256", "calibration", "query/key left", "held-out score error", "masked accuracy", "KL"]
    return markdown([*headings, "refined: masked accuracy", "refined: KL"], cells)


if __name__ == "__main__":
    main()
