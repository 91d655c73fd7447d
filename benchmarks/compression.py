"""Compression of the demo checkpoint against dropping layers and against magnitude pruning, at the same arithmetic.

Every row keeps a part of the multiply-adds of the original's layers, in one of these ways:

- ``collab``: what `collab compress` does, widths divided among all parts by predicted loss;
- ``collab, native``: only what a plain BertModel can hold;
- ``layers``: the best layers dropped, chosen among all subsets by the cosine of the embeddings on held-out rows;
- ``magnitude``: neurons and heads' dimensions of smallest weights dropped, as many in every layer, without a refit.

Each is judged untrained and after healing on STS-B train sentences for the same number of steps: Spearman correlation
×100 and cosine to the original's embeddings on STS-B dev, cosine on WikiText-2 and SST-2 sentences, which healing has
not seen, the CPU seconds of compression and healing, and how many times as fast as the original it runs in float32.
The ways alternate in every measurement of speed.

    python benchmarks/compression.py [--steps 200] [--flops 0.5 --flops 0.33]

Writes results/compression.json and .md. Rows are kept as they finish, and a run that was stopped goes on.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
import torch
import transformers
from common import demo_folder, kept, machine, markdown, my_turn, shared_data, shuffled_rounds, stsb, write
from healing import wikitext_sentences
from judge import stsb_sentences
from scipy.stats import spearmanr
from transformers import AutoModel, AutoTokenizer, PreTrainedModel

import collab
from collab.compression.candidates import Candidates
from collab.conversion.convert import convert_losslessly
from collab.data.features import row_batches, text_features
from collab.models.families import require_family
from collab.models.inputs import random_inputs

SHAPES = ((8, 32), (8, 128), (2, 512))
OUTSIDE = 1000
ROWS = 1024


def embed(model: PreTrainedModel, tokenizer: Any, sentences: Sequence[str]) -> np.ndarray:
    """Mean-pooled embeddings of unit length, (sentences, D)."""
    features = text_features(model, tokenizer, sentences)
    order = np.argsort([len(feature["input_ids"]) for feature in features], kind="stable")
    rows = []
    with torch.no_grad():
        for batch in row_batches(model, tokenizer, features, 64):
            states, mask = model(**batch).last_hidden_state, batch["attention_mask"].unsqueeze(-1)
            rows.append(((states * mask).sum(1) / mask.sum(1)).numpy())
    embeddings = np.empty((len(features), rows[0].shape[1]), dtype=np.float32)
    embeddings[order] = np.concatenate(rows)
    return embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True)


class Judge:
    """What a model's embeddings are compared with: the original's, on text that nothing was fitted on."""

    def __init__(self, original: PreTrainedModel, tokenizer: Any) -> None:
        first, second, self.scores = stsb("dev")
        lines = (shared_data() / "data" / "sst2" / "dev.tsv").read_text(encoding="utf-8").splitlines()[1:]
        self.text = {
            "stsb": first + second,
            "wikitext": wikitext_sentences()[:OUTSIDE],
            "sst2": [line.rpartition("\t")[0] for line in lines],
        }
        self.tokenizer = tokenizer
        self.expected = {name: embed(original, tokenizer, text) for name, text in self.text.items()}

    def measure(self, model: PreTrainedModel) -> dict[str, float]:
        """Spearman correlation ×100 on STS-B dev, and the mean cosine on each text."""
        measured = {}
        for name, text in self.text.items():
            actual = embed(model, self.tokenizer, text)
            measured[f"cosine_{name}"] = float((actual * self.expected[name]).sum(1).mean())
            if name == "stsb":
                first, second = np.split(actual, 2)
                measured["spearman"] = 100 * float(spearmanr((first * second).sum(1), self.scores).statistic)
        return measured


@dataclass
class Bench:
    """The demo checkpoint, its calibration, and the ways to make it smaller."""

    original: PreTrainedModel
    tokenizer: Any
    sentences: list[str]
    calibration: collab.Calibration
    calibrating: float  # CPU seconds

    @classmethod
    def start(cls) -> Bench:
        original = AutoModel.from_pretrained(demo_folder()).eval()
        tokenizer = AutoTokenizer.from_pretrained(demo_folder())
        sentences = stsb_sentences()
        began = time.process_time()
        calibration = collab.calibrate(original, sentences[:ROWS], tokenizer=tokenizer)
        return cls(original, tokenizer, sentences, calibration, time.process_time() - began)

    def collab(self, flops: float, **settings: Any) -> PreTrainedModel:
        """Compressed by collab."""
        config = collab.CompressionConfig(flops=flops, **settings)
        return collab.compress(self.original, config, self.calibration).model

    def layers(self, flops: float) -> PreTrainedModel:
        """The best subset of the layers, among all of that number."""
        candidates = Candidates(
            self.original,
            convert_losslessly(self.original).model,
            require_family(self.original.config),
            self.calibration,
            collab.CompressionConfig(flops=flops, only=("layers",)),
            lambda what, done, total: None,
        )
        count = len(candidates.blocks)
        held_out = self.sentences[ROWS : ROWS + 128]
        expected = embed(self.original, self.tokenizer, held_out)
        models = [
            candidates.build(tuple({} if number in subset else None for number in range(count)))
            for subset in itertools.combinations(range(count), round(flops * count))
        ]
        return max(models, key=lambda model: float((embed(model, self.tokenizer, held_out) * expected).sum()))

    def magnitude(self, flops: float) -> PreTrainedModel:
        """Neurons, and dimensions of the heads' queries, keys and values, of smallest weights dropped everywhere."""
        model = copy.deepcopy(convert_losslessly(self.original).model)
        config = copy.deepcopy(model.config)
        heads, head_dim = config.num_attention_heads, config.hidden_size // config.num_attention_heads
        neurons, width = round(flops * config.intermediate_size / 16) * 16, round(flops * head_dim)
        config.collab_layers = [
            entry | {"rank": heads * width, "head_ranks": [width] * heads, "value_width": width}
            for entry in config.collab_layers
        ]
        config.collab_feed_forward = [neurons] * len(config.collab_layers)
        state = model.state_dict()
        for layer in range(len(config.collab_layers)):
            name = f"encoder.layer.{layer}"
            up, down = f"{name}.intermediate.dense", f"{name}.output.dense"
            size = state[f"{up}.weight"].norm(dim=1) * state[f"{down}.weight"].norm(dim=0)  # (N,)
            keep = size.topk(neurons).indices.sort().values
            state |= {f"{up}.{part}": state[f"{up}.{part}"][keep] for part in ("weight", "bias")}
            state[f"{down}.weight"] = state[f"{down}.weight"][:, keep]
            attention, output = f"{name}.attention.self", f"{name}.attention.output.dense"
            size = state[f"{attention}.query.weight"].norm(dim=1) * state[f"{attention}.key.weight"].norm(dim=1)
            keep = _largest(size, heads, width)
            for part in ("query", "key"):
                state[f"{attention}.{part}.weight"] = state[f"{attention}.{part}.weight"][keep]
            state[f"{attention}.query_offset"] = state[f"{attention}.query_offset"][:, keep]
            size = state[f"{attention}.value.weight"].norm(dim=1) * state[f"{output}.weight"].norm(dim=0)
            keep = _largest(size, heads, width)
            state |= {
                f"{attention}.value.{part}": state[f"{attention}.value.{part}"][keep] for part in ("weight", "bias")
            }
            state[f"{output}.weight"] = state[f"{output}.weight"][:, keep]
        smaller = type(model)(config)
        smaller.load_state_dict(state)
        return smaller.eval()

    def heal(self, model: PreTrainedModel, steps: int, seed: int) -> None:
        """Heals a model in place, as `collab compress` does."""
        run = collab.RunOptions(
            steps=steps, batch_size=64, evaluations=max(2, steps // 200), precision="auto", seed=seed, device="cpu"
        )
        options = collab.HealOptions("layers", len(self.sentences), run=run)
        collab.heal(model, self.original, self.sentences, tokenizer=self.tokenizer, options=options)


def _largest(size: torch.Tensor, heads: int, width: int) -> torch.Tensor:
    """Places of the `width` largest entries of each head, in order, (H·width,)."""
    by_head = size.view(heads, -1)
    kept = by_head.topk(width, dim=1).indices.sort(dim=1).values
    return (kept + torch.arange(heads).unsqueeze(1) * by_head.shape[1]).flatten()


def speeds(models: dict[str, PreTrainedModel], original: PreTrainedModel, rounds: int = 15) -> dict[str, list[float]]:
    """How many times as fast as the original each model is, at every shape."""
    measured: dict[str, list[float]] = {name: [] for name in models}
    for rows, length in SHAPES:
        batch = random_inputs(original, rows, length)
        times = shuffled_rounds([(model, [batch]) for model in (original, *models.values())], rounds)
        for number, name in enumerate(models, 1):
            measured[name].append(median(taken[0] / taken[number] for taken in times))
    return measured


def table(rows: list[dict[str, Any]]) -> str:
    """All rows: quality before and after healing, seconds, and speed."""
    headings = ["way", "multiply-adds", "Spearman", "cosine", "WikiText", "SST-2", "CPU s"]
    headings += [f"{rows} x {length}" for rows, length in SHAPES]
    cells = []
    for row in sorted(rows, key=lambda row: (-row["flops"], row["way"], row["steps"])):
        healed = f", healed {row['steps']} steps" if row["steps"] else ", untrained"
        cells.append(
            [
                f"{row['way']}{healed}",
                f"{row['flops']:.2f}",
                f"{row['spearman']:.2f}",
                *(f"{row[f'cosine_{text}']:.3f}" for text in ("stsb", "wikitext", "sst2")),
                f"{row['seconds']:.0f}",
                *(f"{speed:.2f}" for speed in row["speed"]),
            ]
        )
    return markdown(headings, cells)


def main() -> None:
    """Runs what is missing and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, action="append", help="steps of healing; 0 for none")
    parser.add_argument("--flops", type=float, action="append")
    parser.add_argument("--way", action="append")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    transformers.logging.set_verbosity_error()
    bench = Bench.start()
    judge = Judge(bench.original, bench.tokenizer)
    ways: dict[str, Callable[[float], PreTrainedModel]] = {
        "collab": lambda flops: bench.collab(flops),
        "collab, native": lambda flops: bench.collab(flops, native=True),
        "layers": bench.layers,
        "magnitude": bench.magnitude,
    }
    for flops in arguments.flops or (0.5, 0.33):
        made: dict[str, tuple[PreTrainedModel, float]] = {}
        for way in arguments.way or ways:
            began = time.process_time()
            made[way] = ways[way](flops), bench.calibrating + time.process_time() - began
        fast = speeds({way: model for way, (model, _) in made.items()}, bench.original)
        for steps, (way, (model, seconds)) in itertools.product(arguments.steps or (0, 200), made.items()):
            key = {"way": way, "flops": flops, "steps": steps, "seed": arguments.seed}
            with my_turn("compression"):
                done = kept("compression").get("rows", [])
            if any(key.items() <= row.items() for row in done):
                continue
            healed = copy.deepcopy(model)
            began = time.process_time()
            if steps:
                bench.heal(healed, steps, arguments.seed)
            row = key | {"seconds": seconds + time.process_time() - began, "speed": fast[way], **judge.measure(healed)}
            with my_turn("compression"):
                rows = [*kept("compression").get("rows", []), row]
                write("compression", {"machine": machine(), "shapes": SHAPES, "rows": rows}, table(rows))


if __name__ == "__main__":
    main()
