"""Generation with a cache: bytes of a token, and speed against the original, in turn.

Models with random weights, which cost what trained ones cost: a Marian of the shape of the opus-mt checkpoints, and a
decoder of the width of GPT-2 with 4 of its 12 layers. Both have 8,000 words instead of 58,101 and 50,257, to save time:
the product with the vocabulary costs the same in every model and would bring the ratios nearer to 1. A model writes
exactly as many tokens as it is asked for, with a dynamic cache. The forms are shuffled in every round.

cp and tucker are built with random factors. concat is converted, because its speed depends on how unequal its heads
are; those of trained models are more so.

    python benchmarks/generation.py          # about four minutes on two idle cores
    python benchmarks/generation.py --quick  # tiny models, to see that it runs

Writes results/generation.json and .md; what a run that was interrupted measured is kept, a row for each round. Add
rounds with `--rounds`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from statistics import median
from typing import Any

import numpy as np
import torch
from common import both_sides, kept, machine, markdown, my_turn, write
from torch import Tensor
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    MarianConfig,
    MarianMTModel,
    PreTrainedModel,
    StoppingCriteria,
    StoppingCriteriaList,
)

import collab
from collab.compression.timed import exactly
from collab.models.cache import cache_bytes
from collab.models.families import families

FORMS = ("cp", "tucker", "concat")
PARTS = {1: "full", 2: "half", 4: "a quarter"}
PROMPT = 32  # tokens of a source, or of a decoder's prompt
EARLY = 64  # tokens of a short text
HELD = {
    "keys": "bytes of keys a token of the decoder",
    "values": "of values",
    "cross_keys": "of keys a token of the encoder",
    "cross_values": "of values",
}
"""What a cache holds, with its headings."""


@dataclass(frozen=True)
class Variant:
    """One model: the original (``form`` is None), or a form with R = K / `part`."""

    form: str | None
    part: int = 1

    @property
    def name(self) -> str:
        """For the tables."""
        return "original" if self.form is None else f"{self.form}, {PARTS[self.part]}"


ORIGINAL = Variant(None)
TIMED = (
    ORIGINAL,
    *(Variant(form, part) for form, part in (("concat", 1), ("cp", 1), ("concat", 4), ("cp", 4), ("tucker", 4))),
)


@dataclass(frozen=True)
class Cell:
    """What is generated: `batch` rows of `tokens` new tokens, with `beams`."""

    batch: int
    beams: int
    tokens: int


@dataclass(frozen=True)
class Shape:
    """Of a model: width, layers of either side, heads, words and positions."""

    width: int
    layers: int
    heads: int
    words: int
    positions: int


@dataclass(frozen=True)
class Setting:
    """Sizes of one run.

    Attributes:
        name: of the results.
        marian: the shape of the encoder-decoder.
        decoder: the shape of the decoder.
        cells: what is generated.
    """

    name: str
    marian: Shape
    decoder: Shape
    cells: tuple[Cell, ...]


CELLS = (Cell(1, 1, EARLY), Cell(8, 1, EARLY), Cell(1, 4, EARLY))
REAL = Setting("generation", Shape(512, 6, 8, 8_000, 1024), Shape(768, 4, 12, 8_000, 1024), CELLS)
QUICK = Setting(
    "generation-quick",
    Shape(32, 2, 4, 50, 256),
    Shape(32, 2, 4, 50, 256),
    tuple(replace(cell, tokens=cell.tokens // 4) for cell in CELLS),
)


def marian(width: int, layers: int, heads: int, words: int, positions: int) -> PreTrainedModel:
    """An untrained Marian."""
    config = MarianConfig(
        vocab_size=words,
        d_model=width,
        max_position_embeddings=positions,
        pad_token_id=0,
        eos_token_id=1,
        decoder_start_token_id=0,
        forced_eos_token_id=None,
        scale_embedding=True,
        activation_function="swish",
        **both_sides(layers=layers, attention_heads=heads, ffn_dim=4 * width),
    )
    return MarianMTModel(config)


def decoder(width: int, layers: int, heads: int, words: int, positions: int) -> PreTrainedModel:
    """An untrained GPT-2."""
    config = GPT2Config(
        vocab_size=words,
        n_embd=width,
        n_layer=layers,
        n_head=heads,
        n_positions=positions,
        bos_token_id=1,
        eos_token_id=1,
        pad_token_id=0,
    )
    return GPT2LMHeadModel(config)


def builders(setting: Setting) -> dict[str, Callable[[], PreTrainedModel]]:
    """The originals, by name."""
    shapes = {"Marian": (marian, setting.marian), "GPT-2": (decoder, setting.decoder)}
    return {name: partial(build, **asdict(shape)) for name, (build, shape) in shapes.items()}


def built(original: PreTrainedModel, variant: Variant) -> PreTrainedModel:
    """A model of a form, on the device of the original."""
    if variant.form is None:
        return original
    rank = original.config.hidden_size // variant.part
    if variant.form == "concat" and original.device.type != "meta":
        config = collab.ConversionConfig(rank=rank, form="concat", refine="none", compare=False)
        return collab.convert(original, config).model
    family = families()[original.config.model_type]
    model_class = family.collaborative_class(type(original))
    if model_class is None:
        raise SystemExit(f"{type(original).__name__} has no collaborative version.")
    values = original.config.to_dict() | {"collab_layers": [{"form": variant.form, "rank": rank}]}
    values.pop("model_type")
    with original.device:
        return model_class(family.config_class(**values))


def cache_sizes(setting: Setting) -> list[dict[str, Any]]:
    """Bytes of a token in the cache, every form and rank; the models have no weights."""
    rows = []
    for name, build in builders(setting).items():
        with torch.device("meta"):
            original = build()
        for variant in (ORIGINAL, *(Variant(form, part) for form in FORMS for part in PARTS)):
            held = cache_bytes(built(original, variant))
            if held is None:
                raise SystemExit(f"{name} has no cache.")
            rows.append({"model": name, "form": variant.form, "part": variant.part} | asdict(held))
    return rows


class Clock(StoppingCriteria):
    """Notes when each token was written; stops nothing."""

    def __init__(self) -> None:
        self.start = time.perf_counter()
        self.after: list[float] = []

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        """False for every row."""
        self.after.append(time.perf_counter() - self.start)
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)


def generate(model: PreTrainedModel, cell: Cell) -> list[float]:
    """Seconds from the start until each token was written."""
    generator = torch.Generator().manual_seed(0)
    prompt = torch.randint(3, model.config.vocab_size, (cell.batch, PROMPT), generator=generator)
    clock = Clock()
    model.generate(  # type: ignore[operator]
        input_ids=prompt,
        attention_mask=torch.ones_like(prompt),
        do_sample=False,
        num_beams=cell.beams,
        **exactly(model, cell.tokens),
        stopping_criteria=StoppingCriteriaList([clock]),
    )
    if len(clock.after) != cell.tokens:
        raise SystemExit(f"{len(clock.after)} tokens were written instead of {cell.tokens}.")
    return clock.after


def rounds_of(build: Callable[[], PreTrainedModel], cell: Cell, numbers: range) -> Iterator[dict[str, Any]]:
    """Every model writes the same number of tokens; a row for each round."""
    torch.manual_seed(0)
    original = build().eval()
    models = [built(original, variant).eval() for variant in TIMED]
    for model in models:
        generate(model, replace(cell, tokens=4))  # warm
    for number in numbers:
        taken: dict[str, dict[str, float]] = {}
        for place in np.random.default_rng(number).permutation(len(models)):
            after = generate(models[place], cell)
            taken[TIMED[place].name] = {str(cell.tokens): after[-1]}
        yield asdict(cell) | {"round": number, "seconds": taken}


def of_cell(rows: list[dict[str, Any]], name: str, cell: Cell) -> list[dict[str, Any]]:
    """The rounds of a cell."""
    return [row for row in rows if row["model"] == name and asdict(cell).items() <= row.items()]


def measure(setting: Setting, rounds: int, only: str | None = None) -> None:
    """Fills in the rounds that are missing, of all models or one, and writes after every one."""
    result = kept(setting.name) or {"machine": machine(), "rows": []}
    if result["machine"] != machine():
        raise SystemExit(f"results/{setting.name}.json is of another machine or other versions. Move it away.")
    result["cache"] = cache_sizes(setting)
    for name, build in builders(setting).items():
        for cell in setting.cells if only in (None, name) else ():
            done = len(of_cell(result["rows"], name, cell))
            if done >= rounds:
                continue
            for row in rounds_of(build, cell, range(done, rounds)):
                result["rows"].append({"model": name} | row)
                write(setting.name, result, table(setting, result))
    write(setting.name, result, table(setting, result))


def table(setting: Setting, result: dict[str, Any]) -> str:
    """Bytes of a token, and times as fast as the original."""
    names = list(builders(setting))
    parts = []
    for name in names:
        rows = [row for row in result["cache"] if row["model"] == name]
        whole = next(sum(row[kind] for kind in HELD) for row in rows if row["form"] is None)
        kinds = [kind for kind in HELD if rows[0][kind]]
        cells = []
        for row in rows:
            sizes = [f"{row[kind]:,}" for kind in kinds]
            part = sum(row[kind] for kind in kinds) / whole
            cells.append([Variant(row["form"], row["part"]).name, *sizes, f"{part:.3f}"])
        headings = ["form, rank", *(HELD[kind] for kind in kinds), "of the original's"]
        parts += [f"### {name}: cache", markdown(headings, cells)]
        parts += [f"### {name}: speed", speed_table(setting, result["rows"], name)]
    return "\n\n".join(parts)


def speed_table(setting: Setting, rows: list[dict[str, Any]], name: str) -> str:
    """A row for each model, a column for each text: tokens a second of the original, and the ratios of the others."""
    columns: dict[str, tuple[str, list[dict[str, Any]]]] = {}
    for cell in setting.cells:
        search = "greedy" if cell.beams == 1 else f"beam {cell.beams}"
        columns[f"{search}, {cell.batch}×{cell.tokens}"] = (str(cell.tokens), of_cell(rows, name, cell))
    cells = []
    for variant in TIMED:
        entries = []
        for tokens, measured in columns.values():
            seconds = [row["seconds"][variant.name][tokens] for row in measured]
            if not seconds:
                entries.append("")
            elif variant is ORIGINAL:
                entries.append(f"{measured[0]['batch'] * int(tokens) / median(seconds):.0f} tokens/s")
            else:
                ratios = [
                    row["seconds"][ORIGINAL.name][tokens] / row["seconds"][variant.name][tokens] for row in measured
                ]
                entries.append(f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")
        cells.append([variant.name, *entries])
    return markdown(["form, rank", *columns], cells)


def main() -> None:
    """Measures what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="tiny models, in results/generation-quick.*")
    parser.add_argument("--rounds", type=int, default=2, help="of every cell, with those that are there")
    parser.add_argument("--only", choices=("Marian", "GPT-2"), help="this model alone")
    parser.add_argument("--threads", type=int, help="of torch; the results are in a file of their own")
    arguments = parser.parse_args()
    setting = QUICK if arguments.quick else REAL
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
        setting = replace(setting, name=f"{setting.name}-threads-{arguments.threads}")
    with torch.no_grad(), my_turn(setting.name):
        measure(setting, arguments.rounds, arguments.only)


if __name__ == "__main__":
    main()
