"""Six kinds of text: rows to learn from and rows to judge by, and models compressed and healed on them."""

from __future__ import annotations

import gzip
import os
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from common import demo_folder, shared_data, stsb
from compression import embed
from healing import wikitext_sentences
from scipy.stats import spearmanr
from transformers import AutoModel, AutoTokenizer, PreTrainedModel

import collab
from collab.cli.libraries import KERNELS

os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", KERNELS)  # as the commands do

KINDS = ("STS-B", "SST-2", "WikiText", "Multi30k", "questions", "dialogue")
JUDGED = 900
_DROPPED = {"only": ("layers",)}
BUDGETS: dict[str, dict[str, Any]] = {
    "half": {"flops": 0.5},
    "third": {"flops": 0.33},
    "half, no layer dropped": {"flops": 0.5, "drop_layers": 0},
    "half, one layer dropped": {"flops": 0.5, "drop_layers": 1},
    "third, no layer dropped": {"flops": 0.33, "drop_layers": 0},
    "third, one layer dropped": {"flops": 0.33, "drop_layers": 1},
    "third, two layers dropped": {"flops": 0.33, "drop_layers": 2},
    "two layers dropped": {"flops": 0.67, "drop_layers": 2} | _DROPPED,
    "three layers dropped": {"flops": 0.51, "drop_layers": 3} | _DROPPED,
    "four layers dropped": {"flops": 0.34, "drop_layers": 4} | _DROPPED,
    # The speed of two, three and four dropped layers at 8 rows of 128 tokens (`--speed` of unseen.py measures them).
    "1.5 times as fast": {"speedup": 1.5},
    "1.95 times as fast": {"speedup": 1.95},
    "2.9 times as fast": {"speedup": 2.9},
}
CHECKPOINTS: dict[str, Callable[[], Path]] = {
    "demo": demo_folder,
    "minilm-rotary": lambda: shared_data() / "checkpoints" / "minilm-rotary",
}
STEPS = collab.AFTER_COMPRESSION.run.steps


def texts() -> dict[str, tuple[list[str], list[str]]]:
    """By kind, rows to learn from and rows to judge by; no row is learned from that any kind is judged by."""
    data = shared_data() / "data"

    def lines(name: str) -> list[str]:
        file = data / name
        content = file.read_bytes()
        text = (gzip.decompress(content) if file.suffix == ".gz" else content).decode()
        return [line for line in text.splitlines() if line.strip()]

    def sentences(name: str) -> list[str]:
        return [line.rpartition("\t")[0] for line in lines(name)[1:]]

    first, second, _ = stsb("train")
    questions = lines("questions/questions.txt")
    random.Random(0).shuffle(questions)
    wikitext = wikitext_sentences()
    both = {
        "STS-B": (list(dict.fromkeys(first + second)), [text for part in stsb("dev")[:2] for text in part]),
        "SST-2": (sentences("sst2/train.tsv"), sentences("sst2/dev.tsv")),
        "WikiText": (wikitext[1000:], wikitext[:1000]),
        "Multi30k": (lines("multi30k/train.en.gz"), lines("multi30k/test_2017_flickr.en.gz")),
        "questions": (questions[JUDGED:], questions[:JUDGED]),
        "dialogue": (lines("dialogue/train.txt"), lines("dialogue/validation.txt")),
    }
    every = {text for _, judged in both.values() for text in judged}
    return {kind: ([text for text in train if text not in every], judged) for kind, (train, judged) in both.items()}


class Judge:
    """Cosine to the original's embeddings on every kind of text, and Spearman on STS-B dev.

    Args:
        checkpoint: name of the original.
    """

    def __init__(self, checkpoint: str = "demo") -> None:
        folder = CHECKPOINTS[checkpoint]()
        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        generator = random.Random(1)
        self.texts = {}
        for kind, (_, judged) in texts().items():
            few = kind == "STS-B" or len(judged) <= JUDGED
            self.texts[kind] = judged if few else generator.sample(judged, JUDGED)
        original = AutoModel.from_pretrained(folder).eval().float()
        self.expected = {kind: embed(original, self.tokenizer, rows) for kind, rows in self.texts.items()}
        self.scores = stsb("dev")[2]

    def measure(self, model: PreTrainedModel) -> dict[str, float]:
        """``spearman`` ×100, and the mean cosine by kind; computed in float32."""
        model = model.float()
        measured = {}
        for kind, rows in self.texts.items():
            actual = embed(model, self.tokenizer, rows)
            measured[kind] = float((actual * self.expected[kind]).sum(1).mean())
            if kind == "STS-B":
                first, second = np.split(actual, 2)
                measured["spearman"] = 100 * float(spearmanr((first * second).sum(1), self.scores).statistic)
        return measured


def heal_options(
    fragments: float = collab.AFTER_COMPRESSION.fragments,
    joined: float = collab.AFTER_COMPRESSION.joined,
    optimizer: Literal["adamw", "muon"] = "muon",
    **run: Any,
) -> collab.HealOptions:
    """Healing as `collab compress` does it by default, with other settings of its run."""
    default = replace(collab.AFTER_COMPRESSION, fragments=fragments, joined=joined, optimizer=optimizer)
    return replace(default, run=replace(default.run, **run))


def made(
    name: str,
    folder: Path,
    kinds: Sequence[str] = KINDS,
    steps: int = STEPS,
    seed: int = 0,
    *,
    healed: bool = True,
    checkpoint: str = "demo",
    calibrated: int = 1024,
    dropped: int | None = None,
    **settings: Any,
) -> float:
    """Compresses a checkpoint into a folder, calibrated on `calibrated` rows and healed on some kinds of text.

    Returns the CPU seconds that it took.

    Without steps it is not healed; `healed` then says whether it is to be healed by other means. `dropped` is a number
    of layers to drop where the budget leaves that open. Other settings are those of `heal_options`.
    """
    known = texts()
    mixture = collab.Mixture({kind: known[kind][0] for kind in kinds})
    budget = BUDGETS[name] | ({} if dropped is None else {"drop_layers": dropped})
    options = heal_options(**{"steps": max(1, steps), "seed": seed} | settings)
    calibration = collab.CalibrationOptions(calibrated, 128, seed=seed)
    start = time.process_time()
    if steps:
        collab.checkpoints.compress(
            str(CHECKPOINTS[checkpoint]()),
            folder,
            collab.CompressionConfig(**budget),
            calibration=collab.CalibrationRequest(mixture, calibration),
            heal=collab.HealRequest(mixture, options),
        )
    else:
        original = collab.load(str(CHECKPOINTS[checkpoint]()))
        moments = collab.calibrate(original, mixture, options=calibration)
        collab.save(collab.compress(original, collab.CompressionConfig(**budget, healed=healed), moments), folder)
    return time.process_time() - start
