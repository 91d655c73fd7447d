"""Compression of the demo checkpoint against dropping layers and magnitude pruning, at equal arithmetic or speed.

Every row keeps a part of the multiply-adds of the original's layers (``--flops``), or is as fast at 8 x 128 as the
original without some of its layers (``--dropped``), in one of these ways:

- ``collab``: what `collab compress` does, widths divided among all parts by predicted loss;
- ``collab, to be healed``: the same, with layers dropped where that is predicted to lose less after healing;
- ``collab, native``: only what a plain BertModel can hold;
- ``layers``: the best layers dropped, chosen among all subsets by the cosine of the embeddings on held-out rows;
- ``magnitude``: neurons and heads' dimensions of smallest weights dropped, as many in every layer, without a refit;
- ``Fisher``: heads and neurons of least Fisher information dropped; ``mask search``: the same, and what stays is scaled
  by least squares (Kwon et al. 2022, see mask_search.py).

Each is judged untrained and after healing on STS-B train sentences for the same number of steps: Spearman correlation
×100 and cosine to the original's embeddings on STS-B dev, cosine on sentences and on paragraphs of WikiText-2 and on
SST-2 sentences, which nothing was fitted on, the CPU seconds of compression and healing, and how many times as fast as
the original it runs in float32.
The ways alternate in every measurement of speed.

``--text`` calibrates and heals on other rows than sentences of STS-B train: random words, or half sentences and half
random words or paragraphs of WikiText-2.

    python benchmarks/compression.py [--steps 200] [--flops 0.5 --dropped 3] [--seed 1] [--text paragraphs]

Writes results/compression.json and .md. Rows are kept as they finish, and a run that was stopped goes on; models are in
benchmarks/work meanwhile.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import mask_search
import numpy as np
import torch
import transformers
from common import demo_folder, kept, machine, markdown, my_turn, shared_data, shuffled_rounds, stsb, write
from healing import wikitext_sentences
from judge import paragraphs, stsb_sentences
from scipy.stats import spearmanr
from transformers import AutoModel, AutoTokenizer, PreTrainedModel

import collab
from collab.compression.candidates import Candidates
from collab.conversion.convert import convert_losslessly
from collab.data.batches import Feature, row_batches
from collab.data.features import text_features
from collab.models.families import require_family
from collab.models.inputs import random_inputs

WORK = Path(__file__).parent / "work"
WAYS = ("collab", "collab, to be healed", "layers", "collab, native", "magnitude", "Fisher", "mask search")
SHAPES = ((8, 32), (8, 128), (2, 512))
OUTSIDE = 1000
ROWS = 1024
TEXTS = {
    "stsb": "",
    "words": ", on random words",
    "mixed": ", on sentences and random words",
    "paragraphs": ", on sentences and paragraphs",
}


def embed(model: PreTrainedModel, tokenizer: Any, sentences: Sequence[str]) -> np.ndarray:
    """Mean-pooled embeddings of unit length, (sentences, D)."""
    return embed_rows(model, tokenizer, text_features(model, tokenizer, sentences))


def embed_rows(model: PreTrainedModel, tokenizer: Any, features: Sequence[Feature]) -> np.ndarray:
    """The same of rows that are tokenized, (rows, D)."""
    order = np.argsort([len(feature["input_ids"]) for feature in features], kind="stable")
    rows = []
    with torch.no_grad():
        for batch in row_batches(model, tokenizer, features, 64):
            states, mask = model(**batch).last_hidden_state, batch["attention_mask"].unsqueeze(-1)
            rows.append(((states * mask).sum(1) / mask.sum(1)).numpy())
    embeddings = np.empty((len(features), rows[0].shape[1]), dtype=np.float32)
    embeddings[order] = np.concatenate(rows)
    return embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True)


def rows_of_text(text: str, tokenizer: Any) -> list[str]:
    """What to calibrate and heal on: one of `TEXTS`."""
    sentences = stsb_sentences()
    if text == "stsb":
        return sentences
    # Not the paragraphs that are judged: the first have the sentences of WikiText, the last are the paragraphs.
    others = paragraphs()[400:-50] if text == "paragraphs" else random_words(tokenizer, len(sentences))
    return others if text == "words" else [row for pair in zip(sentences, others, strict=False) for row in pair]


def random_words(tokenizer: Any, rows: int) -> list[str]:
    """Rows of 16, 32, 64 or 128 random tokens, as the default calibration has."""
    generator = np.random.default_rng(0)
    special = set(tokenizer.all_special_ids)
    tokens = [number for number in range(len(tokenizer)) if number not in special]
    lengths = generator.choice((16, 32, 64, 128), rows)
    return [tokenizer.decode(generator.choice(tokens, length - 2)) for length in lengths]


class Judge:
    """What a model's embeddings are compared with: the original's, on text that nothing was fitted on."""

    def __init__(self, original: PreTrainedModel, tokenizer: Any) -> None:
        first, second, self.scores = stsb("dev")
        lines = (shared_data() / "data" / "sst2" / "dev.tsv").read_text(encoding="utf-8").splitlines()[1:]
        self.text = {
            "stsb": first + second,
            "wikitext": wikitext_sentences()[:OUTSIDE],
            "paragraphs": paragraphs()[-50:],
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
    def start(cls, text: str) -> Bench:
        original = AutoModel.from_pretrained(demo_folder()).eval()
        tokenizer = AutoTokenizer.from_pretrained(demo_folder())
        sentences = rows_of_text(text, tokenizer)
        began = time.process_time()
        calibration = collab.calibrate(collab.Checkpoint(original, tokenizer), sentences[:ROWS])
        return cls(original, tokenizer, sentences, calibration, time.process_time() - began)

    def collab(self, **settings: Any) -> PreTrainedModel:
        """Compressed by collab."""
        return collab.compress(self.original, collab.CompressionConfig(**settings), self.calibration).model

    def layers(self, dropped: int) -> PreTrainedModel:
        """The best subset of the layers without so many, among all of that number."""
        candidates = Candidates(
            self.original,
            convert_losslessly(self.original).model,
            require_family(self.original.config),
            self.calibration,
            collab.CompressionConfig(flops=0.5, only=("layers",)),
            lambda what, done, total: None,
        )
        count = len(candidates.blocks)
        held_out = self.sentences[ROWS : ROWS + 128]
        expected = embed(self.original, self.tokenizer, held_out)
        models = [
            candidates.build(tuple({} if number in subset else None for number in range(count)))
            for subset in itertools.combinations(range(count), count - dropped)
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

    def mask_search(self, flops: float, *, scaled: bool) -> PreTrainedModel:
        """Heads and neurons by Fisher information, on the rows of the calibration."""
        features = text_features(self.original, self.tokenizer, self.sentences[:ROWS])
        batches = row_batches(self.original, self.tokenizer, features, 32)
        converted = convert_losslessly(self.original).model
        return mask_search.compress(self.original, converted, batches, flops, scaled=scaled)

    def heal(self, model: PreTrainedModel, steps: int, seed: int) -> None:
        """Heals a model in place, as `collab compress` does."""
        run = collab.RunOptions(
            steps=steps, batch_size=64, evaluations=max(2, steps // 200), precision="auto", seed=seed, device="cpu"
        )
        options = collab.HealOptions("layers", len(self.sentences), run=run)
        collab.heal(collab.Checkpoint(model, self.tokenizer), self.original, self.sentences, options=options)


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
    """All rows: quality before and after healing as means over the seeds with their ranges, seconds, and speed."""
    quality = ["way", "multiply-adds", "seeds", "Spearman", "cosine", "WikiText", "SST-2", "paragraphs"]
    speed = ["way", "multiply-adds", "CPU s", *(f"{rows} × {length}" for rows, length in SHAPES)]
    by_row: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in sorted(rows, key=lambda row: (row["dropped"], -row["flops"], row["way"], row["text"], row["steps"])):
        by_row.setdefault((row["dropped"], row["budget"], row["way"], row["text"], row["steps"]), []).append(row)
    cells, times = [], []
    for (dropped, _, way, text, steps), same in by_row.items():
        asked = f", as fast as without {dropped} layers" if dropped and way != "layers" else ""
        gone = f", {dropped} dropped" if dropped and way == "layers" else ""
        healed = f", healed {steps} steps" if steps else ", untrained"
        row_of = [f"{way}{asked}{gone}{TEXTS[text]}{healed}", f"{median(row['flops'] for row in same):.2f}"]
        cells.append(
            [
                *row_of,
                str(len(same)),
                spread([row["spearman"] for row in same], 2),
                *(
                    spread([row[f"cosine_{name}"] for row in same if f"cosine_{name}" in row], 3)
                    for name in ("stsb", "wikitext", "sst2", "paragraphs")
                ),
            ]
        )
        times.append(
            [
                *row_of,
                f"{median(row['seconds'] for row in same):.0f}",
                *(f"{median(speeds):.2f}" for speeds in zip(*(row["speed"] for row in same), strict=True)),
            ]
        )
    return f"### Quality\n\n{markdown(quality, cells)}\n\n### Time and speed\n\n{markdown(speed, times)}"


def spread(values: list[float], digits: int) -> str:
    """The mean, and the range if there are several values; nothing of none."""
    if not values:
        return ""
    mean = f"{sum(values) / len(values):.{digits}f}"
    return mean if len(values) == 1 else f"{mean} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def arithmetic(model: PreTrainedModel, original: PreTrainedModel) -> float:
    """Multiply-adds of the layers for 128 tokens, relative to the original's."""
    length, width = 128, original.config.hidden_size

    def of_layer(queries: int, values: int, neurons: int) -> int:
        return 2 * length * width * (queries + values + neurons) + length**2 * (queries + values)

    config = model.config
    left = 0
    for entry, neurons in zip(config.collab_layers, config.collab_feed_forward, strict=True):
        heads = len(entry["heads"]) if entry.get("heads") is not None else config.num_attention_heads
        left += of_layer(entry["rank"], heads * (entry.get("value_width") or 32), neurons)
    return left / (original.config.num_hidden_layers * of_layer(width, width, original.config.intermediate_size))


def add(rows: list[dict[str, Any]]) -> None:
    """Adds rows to what is written."""
    with my_turn("compression"):
        all_rows = [*kept("compression").get("rows", []), *rows]
        write("compression", {"machine": machine(), "shapes": SHAPES, "rows": all_rows}, table(all_rows))


def build(bench: Bench, judge: Judge, budget: dict[str, Any], ways: Sequence[str]) -> None:
    """Makes the models of one budget, measures their speed and writes them, untrained, as rows without steps."""
    flops, dropped = budget["budget"], budget["dropped"]
    layers = bench.original.config.num_hidden_layers
    builders: dict[str, Callable[[], PreTrainedModel]] = {
        "layers": lambda: bench.layers(dropped or round((1 - (flops or 0)) * layers))
    }
    if flops is None:
        fast = speeds({"layers": builders["layers"]()}, bench.original)["layers"][1]
        builders["collab"] = lambda: bench.collab(speedup=fast)
        builders["collab, to be healed"] = lambda: bench.collab(speedup=fast, healed=True)
    else:
        builders["collab"] = lambda: bench.collab(flops=flops)
        builders["collab, native"] = lambda: bench.collab(flops=flops, native=True)
        builders["magnitude"] = lambda: bench.magnitude(flops)
        builders["Fisher"] = lambda: bench.mask_search(flops, scaled=False)
        builders["mask search"] = lambda: bench.mask_search(flops, scaled=True)
    made: dict[str, tuple[PreTrainedModel, float]] = {}
    for way in builders:
        if way in (ways or builders) and not (rows_of(way, budget, 0) and folder(way, budget).exists()):
            began = time.process_time()
            made[way] = builders[way](), bench.calibrating + time.process_time() - began
    for way, (model, _) in made.items():
        model.save_pretrained(folder(way, budget))
    # Others were measured where the models no longer are.
    new = {way: each for way, each in made.items() if not rows_of(way, budget, 0)}
    measured = speeds({way: model for way, (model, _) in new.items()}, bench.original) if new else {}
    for way, (model, seconds) in new.items():
        key = {"way": way, "steps": 0, "seed": 0} | budget
        left = arithmetic(model, bench.original)
        add([key | {"flops": left, "seconds": seconds, "speed": measured[way], **judge.measure(model)}])


def folder(way: str, budget: dict[str, Any]) -> Path:
    """Where a model is kept, untrained."""
    return WORK / "compression" / f"{way.replace(', ', '-')}-{budget['budget'] or budget['dropped']}-{budget['text']}"


def rows_of(way: str, budget: dict[str, Any], steps: int) -> list[dict[str, Any]]:
    """What is written of one model, by seed."""
    key = {"way": way, "steps": steps} | budget
    with my_turn("compression"):
        return [row for row in kept("compression").get("rows", []) if key.items() <= row.items()]


def main() -> None:
    """Runs what is missing and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, action="append", help="steps of healing; 0 for none")
    parser.add_argument("--flops", type=float, action="append")
    parser.add_argument("--dropped", type=int, action="append", help="layers that the rival drops")
    parser.add_argument("--way", action="append")
    parser.add_argument("--seed", type=int, action="append", help="of the order of the rows in healing")
    parser.add_argument("--text", choices=tuple(TEXTS), default="stsb")
    arguments = parser.parse_args()
    transformers.logging.set_verbosity_error()
    bench = Bench.start(arguments.text)
    judge = Judge(bench.original, bench.tokenizer)
    budgets = [(flops, 0) for flops in arguments.flops or ()] + [(None, number) for number in arguments.dropped or ()]
    named = [
        {"budget": flops, "dropped": dropped, "text": arguments.text}
        for flops, dropped in budgets or [(0.5, 0), (None, 2), (None, 3), (None, 4)]
    ]
    for budget in named:
        build(bench, judge, budget, arguments.way or ())
    for seed, steps, budget in itertools.product(arguments.seed or (0,), arguments.steps or (0, 200), named):
        for way in arguments.way or WAYS:
            untrained = rows_of(way, budget, 0)
            if not untrained or steps == 0 or any(row["seed"] == seed for row in rows_of(way, budget, steps)):
                continue
            model = AutoModel.from_pretrained(folder(way, budget)).eval()
            began = time.process_time()
            bench.heal(model, steps, seed)
            taken = untrained[0]["seconds"] + time.process_time() - began
            add([untrained[0] | {"steps": steps, "seed": seed, "seconds": taken} | judge.measure(model)])


if __name__ == "__main__":
    main()
