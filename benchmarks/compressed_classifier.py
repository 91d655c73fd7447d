"""A classifier with half or a third of its arithmetic: SST-2, no labels after the fine-tuning.

The demo checkpoint, fine-tuned on SST-2 (see classifiers.py), is compressed to half or a third of the multiply-adds of
its layers on 1,024 training sentences, and healed on training sentences: accuracy on the development set with the 95 %
interval of the difference from the original (paired bootstrap over sentences, 10,000 draws), agreement and divergence.
The rival drops the layers that lose least, and is healed in the same way.

    python benchmarks/compressed_classifier.py [--steps 600] [--flops 0.5] [--way collab]
    python benchmarks/compressed_classifier.py --optimizer muon --steps 100    # of 128 rows instead of 32

Writes results/compressed_classifier.json and .md. Rows are kept as they finish.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import time
from typing import Any

import numpy as np
import torch
import transformers
from classifiers import Bench
from common import kept, machine, markdown, write

import collab

DRAWS = 10_000
RUNS: dict[str, dict[str, Any]] = {"adamw": {}, "muon": {"batch_size": 128, "gradient_accumulation_steps": 4}}
WAYS: dict[str, dict[str, Any]] = {"collab": {}, "layers": {"only": ("layers",)}}


def interval(correct: np.ndarray, reference: np.ndarray) -> tuple[float, float]:
    """95 % interval of the difference of two accuracies ×100 on the same rows."""
    difference = 100 * (correct.astype(float) - reference.astype(float))
    draws = np.random.default_rng(0).integers(0, len(difference), (DRAWS, len(difference)))
    low, high = np.quantile(difference[draws].mean(1), (0.025, 0.975))
    return float(low), float(high)


def main() -> None:
    """Runs what is missing."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, action="append", help="steps of healing; 0 for none")
    parser.add_argument("--flops", type=float, action="append")
    parser.add_argument("--way", action="append", choices=list(WAYS))
    parser.add_argument("--optimizer", choices=tuple(RUNS), default="adamw")
    arguments = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    bench = Bench("sst2")
    labels = torch.tensor([int(feature["labels"]) for feature in bench.features])
    reference = (bench.logits.argmax(-1) == labels).numpy()
    calibration = bench.calibrate("fixed size", 0)
    sentences = bench.train
    rows = kept("compressed_classifier").get("rows", [])
    for flops, way in itertools.product(arguments.flops or (0.5, 0.33), arguments.way or WAYS):
        model = None
        for steps in arguments.steps or (0, 400):
            key = {"way": way, "budget": flops, "steps": steps, "optimizer": arguments.optimizer if steps else ""}
            if any(key.items() <= row.items() for row in rows):
                continue
            if model is None:
                settings = {"flops": flops} | WAYS[way]
                model = collab.compress(bench.model, collab.CompressionConfig(**settings), calibration).model
            healed = copy.deepcopy(model)
            began = time.process_time()
            if steps:
                settings = {"steps": steps, "evaluations": 2, "precision": "auto", "device": "cpu"}
                run = collab.RunOptions(**settings, **RUNS[arguments.optimizer])
                options = collab.HealOptions("layers", 65536, run=run, optimizer=arguments.optimizer)
                collab.heal(collab.Checkpoint(healed, bench.tokenizer), bench.model, sentences, options=options)
            seconds = time.process_time() - began
            correct = (bench.answers(healed).argmax(-1) == labels).numpy()
            low, high = interval(correct, reference)
            judged = bench.judge(healed)
            rows.append(key | judged | {"low": low, "high": high, "healing_seconds": seconds})
            result = {"machine": machine(), "original": 100 * float(reference.mean()), "rows": rows}
            write("compressed_classifier", result, table(result))


def table(result: dict[str, Any]) -> str:
    """All rows."""
    headings = ["", "multiply-adds", "accuracy", "difference", "95 % interval", "agreement", "KL", "CPU s of healing"]
    cells = [["original", "1", f"{result['original']:.1f}", "", "", "", "", ""]]
    for row in sorted(result["rows"], key=lambda row: (-row["budget"], row["way"], row["optimizer"], row["steps"])):
        healed = f"healed {row['steps']} steps, {row['optimizer']}" if row["steps"] else "untrained"
        cells.append(
            [
                f"{row['way']}, {healed}",
                f"{row['budget']:.2f}",
                f"{100 * row['metric']:.1f}",
                f"{100 * row['metric'] - result['original']:+.1f}",
                f"{row['low']:+.1f} to {row['high']:+.1f}",
                f"{100 * row['agreement']:.1f}",
                f"{row['kl']:.4f}",
                f"{row['healing_seconds']:.0f}",
            ]
        )
    return markdown(headings, cells)


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
