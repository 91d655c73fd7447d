"""Long rows: attention in blocks against dense attention, chunks, truncation and Nyström attention.

The models end at 512 positions; those of the demo checkpoint are repeated, those of minilm-rotary go on. Articles of
WikiText-2 are cut at the length; captions of Multi30k and utterances of dialogues are joined until they have it.

- speed: milliseconds of the whole model for one row, by length, as a ratio to dense SDPA; memory: the most that a
  process needs beyond what it needs with the model loaded and unused, for a row of 8,192 tokens;
- quality: cosine of the mean-pooled embedding to dense attention's; halves of 23 articles matched to each other; the
  mean reciprocal rank of a text of 2,000 tokens that hides a sentence at some depth, for the sentence's paraphrase,
  among 8 copies of the text that hide another sentence each, and among 23 articles (32 sentences in four articles);
  Spearman's correlation of 200 pairs of STS-B, which are short; and what training took.

    python benchmarks/long_rows.py --task memory
    python benchmarks/long_rows.py --task quality [--checkpoint rotary]
    python benchmarks/long_rows.py --task speed --length 8192 --rounds 3     # on an idle machine
    python benchmarks/long_rows.py --task layer                              # kinds of attention at one layer
    python benchmarks/long_rows.py --task trained --length 2048 --steps 40   # the same, trained alike
    python benchmarks/long_rows.py --task writing --names gpt2               # decoders, with a cache; or llama

Each task adds to results/long_rows.json and writes results/long_rows-*.md again. Quality takes 30 CPU minutes.
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from common import demo_folder, kept, machine, markdown, my_turn, shared_data, stsb, wikitext_lines, write
from efficient import nystrom, run_layer, table_of_kinds
from efficient_trained import run_trained, table_of_trained
from long_writing import SHAPES, run_writing, table_of_writing
from scipy.stats import spearmanr
from torch import Tensor
from torch.nn import functional
from transformers import AttentionInterface

import collab
from collab.evaluation.timing import time_in_turn
from collab.models.positions import with_positions
from collab.models.states import evaluating

LENGTHS = (768, 1024, 2048, 4096, 8192)
LONGEST = LENGTHS[-1]
WINDOW = 512
LONG = {
    "local": collab.LongOptions("local", dense_below=WINDOW + 1, max_length=LONGEST, positions="copy"),
    "summaries": collab.LongOptions("summaries", dense_below=WINDOW + 1, max_length=LONGEST, positions="copy"),
}
DEPTHS = (0.1, 0.5, 0.9)
HIDING, COPIES = 4, 8
"""Articles that hide sentences, and the copies of each, with a sentence each."""
RATED = 200
"""Pairs of STS-B."""
MODELS = ("dense", "local", "summaries", "Nyström", "half", "half, local")
CHUNKS, NEAREST = "chunks of 512", "nearest chunk of 512"
CHOSEN = "local, half dense"
"""Layers stay dense by what blocks change on text, within half of the arithmetic."""
TRAINED = ("local, refined", "summaries, refined", "local, healed", "summaries, healed")
ROWS = ("truncated at 512", CHUNKS, NEAREST, *MODELS, CHOSEN, *TRAINED)

AttentionInterface.register("nystrom", nystrom)


class Bench:
    """A checkpoint with more positions than it was trained for, and text in rows.

    Args:
        checkpoint: ``demo`` or ``rotary``.
        half: folder of the checkpoint compressed to half of its layers' arithmetic; None for none.
    """

    def __init__(self, checkpoint: str, half: str | None = None) -> None:
        folder = demo_folder() if checkpoint == "demo" else shared_data() / "checkpoints" / "minilm-rotary"
        self.checkpoint = collab.load(str(folder))
        self.checkpoint.model.float()
        self.tokenizer = self.checkpoint.tokenizer
        self.dense = with_positions(self.checkpoint.model, LONGEST, "copy").eval()
        self.half = None if half is None else collab.load(half)
        self.special = self.tokenizer("")["input_ids"]
        self._chunks: dict[tuple[int, ...], Tensor] = {}

    def model(self, name: str) -> Any:
        """A model of `MODELS`."""
        if name == "dense":
            return self.dense
        if name == "Nyström":
            model = with_positions(self.checkpoint.model, LONGEST, "copy").eval()
            model.set_attn_implementation("nystrom")
            return model
        if name.startswith("half"):
            if self.half is None:
                raise SystemExit("Name a checkpoint that collab compress --flops 0.5 wrote: --half FOLDER.")
            options = LONG["local"] if "local" in name else replace(LONG["local"], attention="dense")
            return collab.lengthen(self.half, options).model.eval()
        return collab.lengthen(self.checkpoint, LONG[name]).model.eval()

    def tokens(self, text: str) -> list[int]:
        """A text's tokens without special ones."""
        return self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]

    def embed(self, model: Any, ids: list[int], length: int = LONGEST) -> Tensor:
        """The normalized mean-pooled embedding of tokens, cut at a length, (1, D)."""
        start, end = self.special
        with torch.no_grad():
            states = model(input_ids=torch.tensor([[start, *ids[: length - 2], end]])).last_hidden_state
        return functional.normalize(states.mean(dim=1), dim=1)

    def embed_by(self, name: str, models: dict[str, Any], ids: list[int]) -> Tensor:
        """The embedding of a row by a row of the table, (1, D), or those of its chunks, (P, D)."""
        if name == "truncated at 512":
            return self.embed(self.dense, ids, WINDOW)
        if name in (CHUNKS, NEAREST):
            chunks = [ids[first : first + WINDOW - 2] for first in range(0, len(ids), WINDOW - 2)]
            parts = torch.cat([self._chunk(tuple(chunk)) for chunk in chunks])
            if name == NEAREST:
                return parts
            sizes = torch.tensor([float(len(chunk)) for chunk in chunks])
            return functional.normalize((parts * sizes.unsqueeze(1)).sum(dim=0, keepdim=True), dim=1)
        return self.embed(models[name], ids)

    def _chunk(self, chunk: tuple[int, ...]) -> Tensor:
        """The embedding of a chunk, which may be in several texts."""
        if chunk not in self._chunks:
            self._chunks[chunk] = self.embed(self.dense, list(chunk), WINDOW)
        return self._chunks[chunk]


def articles(bench: Bench) -> list[list[int]]:
    """The tokens of WikiText-2's articles, in their order."""
    parts: list[list[str]] = [[]]
    for line in wikitext_lines():
        if line.startswith(" = ") and not line.startswith(" = ="):
            parts.append([])
        parts[-1].append(line)
    return [bench.tokens("\n".join(part)) for part in parts[1:]]


def packed(bench: Bench, name: str, length: int, count: int) -> list[list[int]]:
    """Short texts joined to rows of a length."""
    import gzip

    data = shared_data() / "data"
    if name == "Multi30k":
        with gzip.open(data / "multi30k" / "val.en.gz", "rt", encoding="utf-8") as file:
            lines = file.read().splitlines()
    else:
        lines = (data / "dialogue" / "validation.txt").read_text(encoding="utf-8").splitlines()
    ids = bench.tokens(" ".join(lines[: 40 * count * length // 512]))
    return [ids[first : first + length - 2] for first in range(0, count * length, length)]


class Quality:
    """The rows that quality is measured on, and how.

    Args:
        bench: the checkpoint.
        count: number of articles whose halves are matched.
    """

    def __init__(self, bench: Bench, count: int) -> None:
        self.bench = bench
        every = [ids for ids in articles(bench) if len(ids) > 2000]
        self.refining = every[::2]
        judged = every[1::2]
        self.halves = [[ids[: len(ids) // 2][:2046], ids[len(ids) // 2 :][:2046]] for ids in judged[:count]]
        self.longest = [
            ids[first : first + LONGEST - 2]
            for ids in judged
            for first in range(0, len(ids) - LONGEST + 3, LONGEST - 2)
        ]
        self.packed = {name: packed(bench, name, 2048, 1) for name in ("Multi30k", "dialogue")}
        first, second, scores = stsb("dev")
        self.rated = [(bench.tokens(a), bench.tokens(b)) for a, b in zip(first[:RATED], second[:RATED], strict=True)]
        self.ratings = scores[:RATED]
        alike = [(a, b) for a, b, score in zip(first, second, scores, strict=True) if score >= 4.6 and a != b]
        chosen = alike[:: len(alike) // (HIDING * COPIES)]
        pairs = [(bench.tokens(a), bench.tokens(b)) for a, b in chosen]
        self.hidden = [
            (number, ids[:2000], pairs[number * COPIES : (number + 1) * COPIES])
            for number, ids in enumerate(judged[:HIDING])
        ]

    def measure(self, name: str, models: dict[str, Any], dense: dict[str, Any] | None) -> dict[str, Any]:
        """Every figure of a row of the table; `dense` has the embeddings by dense attention."""

        def embed(ids: list[int]) -> Tensor:
            return self.bench.embed_by(name, models, ids)

        start = time.process_time()
        halves = [embed(half) for pair in self.halves for half in pair]
        figures = self.retrieval(embed, halves)
        vectors = {}
        if name != NEAREST:  # which has no single vector for a text
            vectors = self.vectors(embed, halves)
            left, right = vectors["2k"][::2], vectors["2k"][1::2]
            figures["halves"] = matched(left @ right.T)
            likeness = [float((embed(a) * embed(b)).sum()) for a, b in self.rated]
            figures["STS-B"] = float(spearmanr(likeness, self.ratings).statistic)
        if dense is not None:
            for source, rows in vectors.items():
                figures[f"cosine {source}"] = float((rows * dense[source]).sum(dim=1).mean())
        return {"figures": figures, "vectors": vectors, "cpu_seconds": time.process_time() - start}

    def vectors(self, embed: Callable[[list[int]], Tensor], halves: list[Tensor] | None = None) -> dict[str, Tensor]:
        """The embeddings that are compared with dense attention's, (N, D) of each kind of text."""
        rows = {"8k": self.longest, **self.packed}
        if halves is None:
            halves = [embed(half) for pair in self.halves for half in pair]
        return {
            "2k": torch.cat(halves),
            **{name: torch.cat([embed(ids) for ids in part]) for name, part in rows.items()},
        }

    def retrieval(self, embed: Callable[[list[int]], Tensor], halves: list[Tensor]) -> dict[str, Any]:
        """How well the paraphrase of a hidden sentence finds it, as mean reciprocal ranks.

        Among copies of one article, which hide a sentence each at the same depth, only the sentence decides. Among the
        articles, whose first halves hide nothing, what they are about decides as well.
        """
        figures: dict[str, Any] = {}
        among: list[float] = []
        for depth in DEPTHS:
            ranks = []
            for number, ids, pairs in self.hidden:
                place = int(depth * len(ids))
                copies = [embed(ids[:place] + sentence + ids[place:]) for sentence, _ in pairs]
                others = halves[: 2 * number : 2] + halves[2 * number + 2 :: 2]
                for mine, (_, paraphrase) in enumerate(pairs):
                    query = embed(paraphrase)
                    ranks.append(reciprocal_rank([nearest(query, copy) for copy in copies], mine))
                    others_and_mine = [nearest(query, other) for other in [copies[mine], *others]]
                    among.append(reciprocal_rank(others_and_mine, 0))
            figures[f"depth {depth}"] = float(np.mean(ranks))
            figures[f"error {depth}"] = float(np.std(ranks, ddof=1) / len(ranks) ** 0.5)
        # One query is asked at every depth, so the standard error is of the queries' means.
        by_query = np.reshape(among, (len(DEPTHS), -1)).mean(axis=0)
        figures["among articles"] = float(by_query.mean())
        figures["error among articles"] = float(by_query.std(ddof=1) / len(by_query) ** 0.5)
        return figures


def nearest(query: Tensor, parts: Tensor) -> float:
    """The similarity of a query, (1, D), to the nearest of a text's embeddings, (P, D)."""
    return float((parts @ query[0]).max())


def reciprocal_rank(similarities: Sequence[float], mine: int) -> float:
    """1 / rank; of texts that are equally near, the mean over their ranks."""
    above = sum(value > similarities[mine] for value in similarities)
    equal = sum(value == similarities[mine] for value in similarities)
    return sum(1 / (above + 1 + place) for place in range(equal)) / equal


def chance(count: int) -> float:
    """The mean reciprocal rank of one among so many, in a random order."""
    return sum(1 / rank for rank in range(1, count + 1)) / count


def matched(similarities: Tensor) -> float:
    """How often the largest entry of a row, and of a column, is on the diagonal."""
    right = torch.arange(len(similarities))
    return (
        float(
            (similarities.argmax(dim=1) == right).float().mean() + (similarities.argmax(dim=0) == right).float().mean()
        )
        / 2
    )


def trained(bench: Bench, quality: Quality, name: str, steps: int) -> tuple[Any, dict[str, Any]]:
    """A model refined or healed against dense attention on rows of 2,048 tokens of other articles."""
    kind, _, how = name.partition(", ")
    pieces = [ids[first : first + 2046] for ids in quality.refining for first in range(0, len(ids) - 2046, 2046)][:44]
    long = collab.lengthen(bench.checkpoint, LONG[kind])
    began = time.process_time()
    figures: dict[str, Any] = {"steps": steps, "rows": len(pieces)}
    if how == "refined":
        start, end = bench.special
        rows = [{"input_ids": torch.tensor([[start, *ids, end]])} for ids in pieces]
        long = collab.refine(long, bench.dense, rows[4:], rows[:4], options=collab.RefineOptions(steps=steps, rows=1))
        layers = long.report.layers.values()
        figures["before"] = [layer.before for layer in layers]
        figures["after"] = [layer.after if layer.kept else layer.before for layer in layers]
    else:
        options = collab.HealOptions(
            max_length=2048,
            run=collab.RunOptions(learning_rate=3e-4, batch_size=1, steps=steps, evaluations=2),
        )
        long = collab.heal(long, bench.dense, [bench.tokenizer.decode(ids) for ids in pieces], options=options)
    figures["cpu_minutes"] = (time.process_time() - began) / 60
    return long.model.eval(), figures


def run_quality(checkpoint: str, count: int, steps: int, names: Sequence[str]) -> None:
    """Measures the rows of the table, one after another."""
    bench = Bench(checkpoint)
    quality = Quality(bench, count)
    if "dense" in names:
        dense = quality.measure("dense", {"dense": bench.dense}, None)
    else:
        dense = {"vectors": quality.vectors(partial(bench.embed, bench.dense))}
    for name in names:
        more: dict[str, Any] = {}
        models: dict[str, Any] = {}
        if name in TRAINED:
            models[name], more = trained(bench, quality, name, steps)
        elif name == CHOSEN:
            texts = [bench.tokenizer.decode(ids) for ids in quality.refining]
            long = collab.lengthen(bench.checkpoint, replace(LONG["local"], dense_layers="auto"), texts)
            models[name], more = long.model.eval(), {"dense layers": long.report.settings["dense_layers"]}
        elif name in MODELS:
            models[name] = bench.model(name)
        with evaluating(*models.values()):
            measured = dense if name == "dense" else quality.measure(name, models, dense["vectors"])
        entry = {**measured["figures"], "cpu_seconds": measured["cpu_seconds"], "training": more}
        entry |= {"articles": len(quality.halves), "long": len(quality.longest), "hidden": HIDING * COPIES}
        keep("quality", f"{checkpoint}: {name}", entry)


class Pooled:
    """A model that is timed, whose last embedding is kept.

    Args:
        model: the model.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self.embedding = torch.empty(0)

    def __call__(self, **batch: Tensor) -> None:
        states = self._model(**batch).last_hidden_state
        self.embedding = functional.normalize(states.mean(dim=(0, 1)), dim=0)


class InChunks(Pooled):
    """The same, reading a row in chunks of 512 tokens; the last one may be shorter, and is read after the others."""

    def __call__(self, **batch: Tensor) -> None:
        (ids,) = batch["input_ids"]  # (T,)
        start, end = ids[:1], ids[-1:]
        chunks = [torch.cat([start, chunk, end]) for chunk in ids[1:-1].split(WINDOW - 2)]
        states = [
            self._model(input_ids=torch.stack(list(same))).last_hidden_state.flatten(0, 1)  # (chunks·T, D)
            for _, same in itertools.groupby(chunks, len)
        ]
        self.embedding = functional.normalize(torch.cat(states).mean(dim=0), dim=0)


def run_speed(bench: Bench, checkpoint: str, length: int, rounds: int, names: Sequence[str]) -> None:
    """Seconds of every model for one article of a length, another in every round, and cosines to dense attention."""
    start, end = bench.special
    long = [ids for ids in articles(bench) if len(ids) >= length - 2][-rounds:]
    rows = [{"input_ids": torch.tensor([[start, *ids[: length - 2], end]])} for ids in long]
    calls = {name: (Pooled(bench.model(name)), rows) for name in names}
    if length > WINDOW:
        calls["chunks of 512"] = (InChunks(bench.dense), rows)
    time_in_turn([(call, batches[:1]) for call, batches in calls.values()])  # warm
    taken, cosines = [], []
    for number in range(len(rows)):
        runs = [(call, batches[number : number + 1]) for call, batches in calls.values()]
        taken.append(time_in_turn(runs, backwards=number % 2 == 1))
        embeddings = torch.stack([call.embedding for call, _ in calls.values()])
        cosines.append((embeddings @ calls["dense"][0].embedding).tolist())
    seconds = np.array(taken)  # (rounds, models)
    for number, name in enumerate(calls):
        ratios = seconds[:, list(calls).index("dense")] / seconds[:, number]
        entry = {
            "ms": 1000 * float(np.median(seconds[:, number])),
            "ratio": float(np.median(ratios)),
            "lowest": float(ratios.min()),
            "highest": float(ratios.max()),
            "cosine": float(np.mean(cosines, axis=0)[number]),
            "rows": len(rows),
            "threads": torch.get_num_threads(),
        }
        if name.startswith("half") and bench.half is not None:
            entry["made by"] = bench.half.history.command or Path(bench.half.folder or "").name
        keep("speed", f"{checkpoint}: {name}: {length}", entry)


def peak(name: str, length: int, padded: bool) -> float:
    """MB beyond those of a process with the model loaded, which one forward pass needs at most."""
    model = Bench("demo").model(name)
    ids = torch.randint(1000, 20000, (1 + padded, length), generator=torch.Generator().manual_seed(0))
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    batch["attention_mask"][1:, 3 * length // 4 :] = 0
    with torch.no_grad():
        model(input_ids=ids[:, :64])
        ctypes.CDLL(None).malloc_trim(0)  # what loading the model has freed is not left for the forward pass
        before = _kilobytes("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # sets VmHWM, the most so far, to VmRSS
        model(**batch)
    return (_kilobytes("VmHWM") - before) / 1024


def _kilobytes(name: str) -> int:
    """An entry of Linux's report on this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def run_memory(length: int, padded: bool, names: Sequence[str]) -> None:
    """Peak memory, each model in a process of its own; with padding, of two rows, the second a quarter shorter."""
    for name in names:
        line = [sys.executable, __file__, "--task", "peak", "--names", name, "--length", str(length)]
        done = subprocess.run([*line, *["--padded"] * padded], capture_output=True, text=True, check=True)
        entry = {"mb": float(done.stdout.split()[-1]), "rows": 1 + padded, "length": length}
        keep("memory", f"{name}{', padded' if padded else ''}", entry)


def keep(part: str, name: str, entry: dict[str, Any]) -> None:
    """Adds a row to what is there, and writes the tables."""
    print(part, name, entry, file=sys.stderr, flush=True)
    with my_turn("long_rows"):
        result = kept("long_rows")
        result.setdefault(part, {})[name] = entry
        result["machine"] = machine()
        write("long_rows", result, tables(result))


def tables(result: dict[str, Any]) -> str:
    """All tables."""
    parts = []
    if "speed" in result:
        parts.append(speed_table(result["speed"]))
    if "memory" in result:
        rows = [[name, f"{entry['rows']}", f"{entry['mb']:.0f}"] for name, entry in result["memory"].items()]
        parts.append(markdown(["rows of 8,192 tokens", "rows", "peak, MB"], rows))
    if "quality" in result:
        for checkpoint in ("demo", "rotary"):
            parts += [agreement_table(result["quality"], checkpoint), retrieval_table(result["quality"], checkpoint)]
    if "layer" in result:
        parts.append(table_of_kinds(result["layer"], markdown))
    if "trained" in result:
        parts.append(table_of_trained(result["trained"], markdown))
    if "writing" in result:
        parts.append(table_of_writing(result["writing"], markdown))
    return "\n\n".join(filter(None, parts))


def speed_table(speed: dict[str, Any]) -> str:
    """Times as fast as dense attention, and cosines to it, by length."""
    rows = []
    for name in dict.fromkeys(key.rpartition(":")[0] for key in speed):
        entries = [speed.get(f"{name}: {length}") for length in LENGTHS]
        cells = [
            "" if entry is None else f"{entry['ratio']:.2f} ({entry['lowest']:.2f}–{entry['highest']:.2f})"
            for entry in entries
        ]
        cosines = [
            "" if entry is None or "cosine" not in entry else f"{entry['cosine']:.3f}"
            for entry in (entries[2], entries[-1])
        ]
        last = entries[-1]
        rows.append([name, *cells, "" if last is None else f"{last['ms']:.0f}", *cosines])
    headings = ["times as fast as dense", *map(str, LENGTHS), "ms, 8192", "cosine, 2048", "cosine, 8192"]
    return markdown(headings, rows)


def agreement_table(quality: dict[str, Any], checkpoint: str) -> str:
    """Cosines to dense attention's embeddings, Spearman's correlation on short rows, and what training took."""
    columns = ["cosine 2k", "cosine 8k", "cosine Multi30k", "cosine dialogue", "STS-B"]
    rows = []
    for name, entry in measured(quality, checkpoint).items():
        minutes = entry["training"].get("cpu_minutes")
        cells = [f"{entry[column]:.3f}" if column in entry else "" for column in columns]
        if any(cells):
            rows.append([name, *cells, "" if minutes is None else f"{minutes:.1f}"])
    return markdown([checkpoint, *columns, "training, CPU minutes"], rows) if rows else ""


def retrieval_table(quality: dict[str, Any], checkpoint: str) -> str:
    """Halves of articles matched, and mean reciprocal ranks of a hidden sentence with their standard errors."""
    rows, count = [], 0
    for name, entry in measured(quality, checkpoint).items():
        count = entry["articles"]
        places = [(f"depth {depth}", f"error {depth}") for depth in DEPTHS]
        cells = [
            f"{entry[column]:.2f} ± {entry[error]:.2f}"
            for column, error in (*places, ("among articles", "error among articles"))
        ]
        rows.append([name, f"{entry['halves']:.3f}" if "halves" in entry else "", *cells])
    if not rows:
        return ""
    by_chance = [f"{1 / count:.3f}", *[f"{chance(COPIES):.2f}"] * len(DEPTHS), f"{chance(count):.2f}"]
    headings = [checkpoint, "halves", *(f"depth {depth}" for depth in DEPTHS), f"among {count} articles"]
    return markdown(headings, [*rows, ["chance", *by_chance]])


def measured(quality: dict[str, Any], checkpoint: str) -> dict[str, dict[str, Any]]:
    """What was measured of a checkpoint, by row, in their order."""
    return {name: entry for name in ROWS if (entry := quality.get(f"{checkpoint}: {name}")) is not None}


def main() -> None:
    """Runs a task."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    tasks = ["speed", "memory", "quality", "layer", "trained", "writing", "peak"]
    parser.add_argument("--task", choices=tasks, required=True)
    parser.add_argument("--checkpoint", choices=["demo", "rotary"], default="demo")
    parser.add_argument("--names", nargs="*", help="Rows to measure; all by default.")
    parser.add_argument("--length", type=int, default=LONGEST)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--articles", type=int, default=23)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--half", metavar="FOLDER", help="The checkpoint as collab compress --flops 0.5 wrote it.")
    parser.add_argument("--padded", action="store_true")
    wanted = parser.parse_args()
    transformers.logging.set_verbosity_error()
    if wanted.task == "speed":
        bench = Bench(wanted.checkpoint, wanted.half)
        names = wanted.names or [name for name in MODELS if bench.half is not None or "half" not in name]
        run_speed(bench, wanted.checkpoint, wanted.length, wanted.rounds, names)
    elif wanted.task == "memory":
        run_memory(wanted.length, wanted.padded, wanted.names or ("dense", "local", "summaries"))
    elif wanted.task == "quality":
        run_quality(wanted.checkpoint, wanted.articles, wanted.steps, wanted.names or ROWS)
    elif wanted.task == "writing":
        for shape in wanted.names or SHAPES:
            for name, entry in run_writing(shape, wanted.length, wanted.rounds):
                keep("writing", name, entry)
    elif wanted.task == "peak":
        print(peak(wanted.names[0], wanted.length, wanted.padded))
    elif wanted.task == "trained":
        bench = Bench("demo")
        quality = Quality(bench, 1)
        rows = [torch.tensor([ids[:2048]]) for ids in quality.refining[:6] if len(ids) >= 2048]
        judged = [torch.tensor([quality.longest[0][: wanted.length]])]
        for name, entry in run_trained(bench.dense, rows, judged, wanted.steps, wanted.names):
            keep("trained", name, entry)
    else:
        bench = Bench("demo")
        ids = torch.tensor([max(articles(bench), key=len)[:LONGEST]])
        for name, entry in run_layer(bench.dense, ids, wanted.rounds):
            keep("layer", name, entry)


if __name__ == "__main__":
    main()
