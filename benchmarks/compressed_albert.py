"""A real ALBERT, whose twelve passes share one layer, compressed and healed on masked rows and on whole ones.

On 128 reactions that neither compression nor healing has seen, 15 % of the tokens masked: accuracy on the masked
tokens, and the Kullback-Leibler divergence of the predictions from the original's. `collab` masks 15 % of the tokens of
the 361 reactions that it calibrates and heals on; with a tokenizer that has no mask token it takes them as they are.
Shared layers cannot be dropped, so there is no rival of that kind.

    OMP_NUM_THREADS=1 python benchmarks/compressed_albert.py [--steps 200] [--seed 0]

Writes results/compressed_albert.json and .md, about a quarter of an hour of one core for each seed; rows are kept as
they finish.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

import transformers
from albert import TOKEN, checkpoint, divided, judge, tokens
from common import kept, machine, markdown, write
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

import collab

BUDGETS = 0.75, 0.5
SEEDS = 0, 1, 2


def tokenizer() -> PreTrainedTokenizerFast:
    """The tokenizer that the checkpoint was trained with."""
    vocabulary = {token: number for number, token in enumerate(tokens())}
    splits = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    splits.pre_tokenizer = pre_tokenizers.Split(Regex(TOKEN.pattern), behavior="isolated")
    ends = [(name, vocabulary[name]) for name in ("[CLS]", "[SEP]")]
    splits.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", special_tokens=ends)
    special = {f"{name}_token": f"[{name.upper()}]" for name in ("unk", "cls", "sep", "pad", "mask")}
    return PreTrainedTokenizerFast(tokenizer_object=splits, **special)


def saved_original(folder: Path) -> collab.Checkpoint:
    """The original with its tokenizer, by way of a folder."""
    transformers.AutoModelForMaskedLM.from_pretrained(checkpoint()).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    original = collab.load(str(folder))
    original.model.eval()
    return original


def texts(rows: list[list[int]]) -> list[str]:
    """Reactions as text, without the special tokens at their ends."""
    names = tokens()
    return ["".join(names[number] for number in row[1:-1]) for row in rows]


def main() -> None:
    """Measures every budget, before healing and after it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seed", action="append", type=int)
    chosen = parser.parse_args()
    transformers.logging.disable_progress_bar()
    train, test = divided()
    learned = texts(train)
    with tempfile.TemporaryDirectory() as folder:
        original = saved_original(Path(folder))
        for flops, seed, hidden in itertools.product(BUDGETS, chosen.seed or SEEDS, (True, False)):
            key = {"flops": flops, "seed": seed, "masked": hidden}
            rows = kept("compressed_albert").get("rows", [])
            known = [row["steps"] for row in rows if key.items() <= row.items()]
            if chosen.steps in known:
                continue
            reader = tokenizer()
            if not hidden:
                reader.mask_token = None
            both = measured(replace(original, processor=reader), learned, test, flops, chosen.steps, seed)
            every = [*rows, *(key | row for row in both if row["steps"] not in known)]
            write("compressed_albert", {"machine": machine(), "rows": every}, table(every))


def measured(
    original: collab.Checkpoint, learned: list[str], test: list[Any], flops: float, steps: int, seed: int
) -> list[dict[str, Any]]:
    """A compression before healing and after it."""
    calibration = collab.CalibrationOptions(2048, 256, seed=seed)
    moments = collab.calibrate(original, learned, options=calibration)
    run = collab.RunOptions(precision="auto", steps=steps, batch_size=8, evaluations=3, seed=seed)
    options = collab.HealOptions("layers", samples=65536, max_length=256, run=run)
    compressed = collab.compress(original, collab.CompressionConfig(flops=flops, healed=True), moments)
    rows = [{"steps": 0, "cpu_seconds": 0.0} | judge(compressed.model.eval(), original.model, test)]
    start = time.process_time()
    healed = collab.heal(compressed, original, learned, options=options)
    row = {"steps": steps, "learning_rate": healed.report.settings["run"]["learning_rate"]}
    row |= {"improved": healed.report.improved, "cpu_seconds": time.process_time() - start}
    return [*rows, row | judge(healed.model.eval(), original.model, test)]


def table(rows: list[dict[str, Any]]) -> str:
    """A row for each budget, kind of rows and number of steps, the mean over its seeds."""
    cells = []
    for key, group in itertools.groupby(sorted(rows, key=_key), _key):
        (less, whole, steps), same = key, list(group)
        means = [f"{mean(row[name] for row in same):.4f}" for name in ("accuracy", "kl")]
        seconds = f"{mean(row['cpu_seconds'] for row in same):.0f}" if steps else ""
        cells.append([f"{-less:.2f}", "whole" if whole else "masked", str(steps), str(len(same)), *means, seconds])
    return markdown(["multiply-adds", "rows", "steps", "seeds", "masked accuracy", "KL", "CPU s of healing"], cells)


def _key(row: dict[str, Any]) -> tuple[float, bool, int]:
    return -row["flops"], not row["masked"], row["steps"]


if __name__ == "__main__":
    main()
