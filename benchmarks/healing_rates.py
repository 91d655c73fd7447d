"""Learning rates to heal models with logits of every token: a translator and a masked language model.

- ``translator``: the short reference of benchmarks/compressed_translation.py with half of the bytes that its decoder's
  layers read, healed for 200 steps of 32 pairs of Multi30k;
- ``ALBERT``: the real ALBERT of benchmarks/compressed_albert.py at half of its arithmetic, healed for 100 steps of
  8 reactions, 15 % of the tokens masked.

    OMP_NUM_THREADS=1 python benchmarks/healing_rates.py [--model translator] [--rate 1e-4]

Writes results/healing_rates.json and .md: loss, and divergence of the answers from the original's, on held-out rows,
before healing and after it. Rows are kept as they finish, about two CPU minutes each.
"""

from __future__ import annotations

import argparse
import copy
import functools
import tempfile
import time
from pathlib import Path
from typing import Any

import compressed_albert
import compressed_translation
from albert import divided
from common import kept, machine, markdown, my_turn, write

import collab

RATES = 1e-6, 1e-5, 1e-4, 3e-4, 5e-4


def translator(rate: float) -> collab.Checkpoint:
    """The healed translator."""
    models = compressed_translation.Models(compressed_translation.SHORT)
    compressed = collab.Checkpoint(models.model("bytes .5", False), models.translator.tokenizer)
    run = collab.RunOptions(learning_rate=rate, steps=200, evaluations=2, precision="bfloat16", device="cpu")
    options = collab.HealOptions("layers", 4096, run=run)
    return collab.heal(compressed, models.reference, models.translator.pairs("train")[:4096], options=options)


def albert(rate: float) -> collab.Checkpoint:
    """The healed ALBERT."""
    original, compressed, texts = _albert()
    run = collab.RunOptions(learning_rate=rate, steps=100, batch_size=8, evaluations=2, precision="auto")
    options = collab.HealOptions("layers", 65536, max_length=256, run=run)
    return collab.heal(copy.deepcopy(compressed), original, texts, options=options)


@functools.cache
def _albert() -> tuple[collab.Checkpoint, collab.Checkpoint, list[str]]:
    """The original, its half, and reactions to heal on."""
    with tempfile.TemporaryDirectory() as folder:
        original = compressed_albert.saved_original(Path(folder))
    texts = compressed_albert.texts(divided()[0])
    moments = collab.calibrate(original, texts, options=collab.CalibrationOptions(2048, 256))
    return original, collab.compress(original, collab.CompressionConfig(flops=0.5, healed=True), moments), texts


MODELS = {"translator": translator, "ALBERT": albert}


def main() -> None:
    """Runs what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", choices=tuple(MODELS))
    parser.add_argument("--rate", action="append", type=float)
    chosen = parser.parse_args()
    for name in chosen.model or MODELS:
        for rate in chosen.rate or RATES:
            key = {"model": name, "rate": rate}
            if any(key.items() <= row.items() for row in kept("healing_rates").get("rows", [])):
                continue
            start = time.process_time()
            report: Any = MODELS[name](rate).report
            measured = {"cpu_seconds": time.process_time() - start, "improved": report.improved}
            measured |= {"before": report.before, "after": report.after}
            with my_turn("healing_rates"):
                rows = [*kept("healing_rates").get("rows", []), key | measured]
                write("healing_rates", {"machine": machine(), "rows": rows}, table(rows))


def table(rows: list[dict[str, Any]]) -> str:
    """A row for each model and rate, after one for each model before healing."""
    cells = []
    for name in MODELS:
        same = sorted((row for row in rows if row["model"] == name), key=lambda row: row["rate"])
        for place, row in enumerate(same):
            states = [("not healed", row["before"])] if place == 0 else []
            states.append((f"{row['rate']:.0e}" if row["improved"] else f"{row['rate']:.0e}, undone", row["after"]))
            cells += [[name, rate, f"{values['loss']:.3f}", f"{values['kl']:.4f}"] for rate, values in states]
    return markdown(["model", "learning rate", "loss", "KL"], cells)


if __name__ == "__main__":
    main()
