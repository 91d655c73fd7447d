"""Compression healed on some kinds of text and judged on one that it has never seen.

The demo checkpoint is compressed to half or a third of its layers' arithmetic, by dropping two, three or four layers,
or until it is as fast as without them, calibrated and healed on five of six kinds of text (STS-B, SST-2, WikiText-2,
Multi30k, questions, dialogue) and judged on the sixth, by the cosine to the original's embeddings; ``none`` left out
heals on all six. Recipes: ``default`` is what `collab compress` does, the others what it might do instead, calibrated
on 2,048 rows instead of 1,024. Recipes in the results that cannot be chosen were the default once.

    python benchmarks/unseen.py [--left-out dialogue] [--model half] [--recipe default] [--seed 0] [--steps 1200]
    python benchmarks/unseen.py --checkpoint minilm-rotary    # another original, with results of its own
    python benchmarks/unseen.py --speed    # times as fast as the original, of the models healed on all kinds

Each option may be given several times; without them all are run, about ten CPU minutes for each row of the table. Rows
of a model that is to be so many times as fast start with measuring, on an otherwise idle machine. Writes
results/unseen.json and .md (of another original unseen-NAME); rows are kept as they finish, and models healed on all
kinds in work/kinds.
"""

from __future__ import annotations

import argparse
import itertools
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from common import kept, machine, markdown, my_turn, times_as_fast, write
from kinds import BUDGETS, CHECKPOINTS, KINDS, STEPS, Judge, made
from transformers import AutoConfig, AutoModel

import collab
from collab.evaluation.timing import Run
from collab.models.inputs import random_inputs

WORK = Path(__file__).parent / "work" / "kinds"
_ADAM = {
    "optimizer": "adamw",
    "batch_size": 32,
    "warmup": 0.1,
    "gradient_accumulation_steps": 1,
    "calibrated": 2048,
    "joined": 0.0,
}
RECIPES: dict[str, dict[str, Any]] = {
    "default": {},
    "rows not joined": {"joined": 0.0},
    "Adam": {"steps": 1800} | _ADAM,
    "whole rows, 1200 steps": {"steps": 1200, "fragments": 0.0} | _ADAM,
    "200 steps of 64 whole rows": {"steps": 200, "fragments": 0.0} | _ADAM | {"batch_size": 64},
    "600 steps of 64 whole rows": {"steps": 600, "fragments": 0.0} | _ADAM | {"batch_size": 64},
}


def main() -> None:
    """Runs what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, known in (("left-out", ("none", *KINDS)), ("model", tuple(BUDGETS)), ("recipe", tuple(RECIPES))):
        parser.add_argument(f"--{name}", action="append", choices=known)
    parser.add_argument("--checkpoint", choices=tuple(CHECKPOINTS), default="demo")
    parser.add_argument("--seed", action="append", type=int)
    parser.add_argument("--steps", type=int, help="for recipes that give none, or that of Adam")
    parser.add_argument("--speed", action="store_true", help="measure the speed at 8 rows of 128 tokens, and no more")
    chosen = parser.parse_args()
    result = _result(chosen.checkpoint)
    if chosen.speed:
        add(result, speed=speeds(chosen.checkpoint, chosen.model or tuple(BUDGETS)))
        return
    judge = None
    for left_out, model, recipe, seed in itertools.product(
        chosen.left_out or ("none", *KINDS), chosen.model or BUDGETS, chosen.recipe or RECIPES, chosen.seed or (0, 1, 2)
    ):
        settings = {"steps": STEPS} | RECIPES[recipe]
        if chosen.steps and takes_steps(recipe):
            settings["steps"] = chosen.steps
        key = {"left_out": left_out, "model": model, "recipe": recipe, "seed": seed, "steps": settings["steps"]}
        if any(key.items() <= row.items() for row in kept(result).get("rows", [])):
            continue
        judge = judge or Judge(chosen.checkpoint)
        folder = folder_of(chosen.checkpoint, model, left_out, recipe, settings["steps"], seed)
        kinds = [kind for kind in KINDS if kind != left_out]
        seconds = made(model, folder, kinds, seed=seed, checkpoint=chosen.checkpoint, **settings)
        compressed = collab.load(str(folder)).model
        row = key | {"cpu_seconds": seconds, "layers": compressed.config.num_hidden_layers} | judge.measure(compressed)
        if left_out != "none":
            shutil.rmtree(folder)
        add(result, rows=[row])


def healed_on_all(model: str, recipe: str = "default") -> Path:
    """The folder of the demo checkpoint healed on all kinds, with seed 0, which is made where it is missing."""
    settings = {"steps": STEPS} | RECIPES[recipe]
    folder = folder_of("demo", model, "none", recipe, settings["steps"], 0)
    if not folder.is_dir():
        made(model, folder, **settings)
    return folder


def folder_of(checkpoint: str, model: str, left_out: str, recipe: str, steps: int, seed: int) -> Path:
    """Where a model is while it is measured; for good if none was left out."""
    of_another = [] if checkpoint == "demo" else [checkpoint]
    return WORK / "-".join([*of_another, model.replace(" ", "-"), left_out, recipe, str(steps), str(seed)])


def speeds(checkpoint: str, models: Sequence[str]) -> dict[str, dict[str, float]]:
    """Times as fast as the original, by name and kind of processor, as `times_as_fast` measures it in 15 rounds.

    Of a model that is not kept, what is not healed is measured, which has the same shapes.
    """
    original = AutoModel.from_pretrained(CHECKPOINTS[checkpoint]()).eval()
    batch = random_inputs(original, 8, 128)
    compared: dict[str, Any] = {}
    for model in models:
        folder = folder_of(checkpoint, model, "none", "default", STEPS, 0)
        if not folder.exists():
            folder = folder.with_name(f"{checkpoint}-{model.replace(' ', '-')}-untrained")
            if not folder.exists():
                made(model, folder, steps=0, checkpoint=checkpoint, dropped=_dropped(checkpoint, model))
        compared[model] = collab.load(str(folder)).model.eval()
    runs: list[Run] = [(model, [batch]) for model in (original, *compared.values())]
    processor = torch.backends.cpu.get_cpu_capability()  # the widths that are fast depend on it
    return dict(zip((f"{name}, {processor}" for name in compared), times_as_fast(runs, 15)[1:], strict=True))


def _dropped(checkpoint: str, model: str) -> int | None:
    """The number of layers that the healed model lacks, which was tried; None if no such model was made."""
    tried = "default", "rows not joined"
    rows = kept(_result(checkpoint)).get("rows", [])
    left = [row["layers"] for row in rows if row["model"] == model and row["recipe"] in tried]
    return AutoConfig.from_pretrained(CHECKPOINTS[checkpoint]()).num_hidden_layers - left[0] if left else None


def _result(checkpoint: str) -> str:
    return "unseen" if checkpoint == "demo" else f"unseen-{checkpoint}"


def add(name: str, rows: Sequence[dict[str, Any]] = (), speed: dict[str, dict[str, float]] | None = None) -> None:
    """Adds to what is written."""
    with my_turn(name):
        old = kept(name)
        all_rows = [*old.get("rows", []), *rows]
        speed = old.get("speed", {}) | (speed or {})
        result = {"machine": machine(), "rows": all_rows, "speed": speed}
        write(name, result, f"{table(all_rows)}\n\n{speed_table(speed)}" if speed else table(all_rows))


def speed_table(speed: dict[str, dict[str, float]]) -> str:
    """A row for each model whose speed was measured."""
    cells = [[name, "{ratio:.2f} ({low:.2f} to {high:.2f})".format(**value)] for name, value in speed.items()]
    return markdown(["model", "times as fast as the original, 8 × 128"], cells)


def table(rows: list[dict[str, Any]]) -> str:
    """A row for each model, the mean over its seeds; the kind that was left out in bold."""
    headings = ["model", "left out", "CPU s", "Spearman", *KINDS]
    cells = []
    apart = [0.0]  # the largest difference of a cosine between seeds, of every row with several
    for (_, left_out, model, recipe, steps), same in grouped(rows):
        by_kind = {kind: [row[kind] for row in same] for kind in KINDS}
        apart += [max(values) - min(values) for values in by_kind.values()]
        cosines = [f"{mean(values):.4f}" for values in by_kind.values()]
        settings = ", ".join([titled(model, recipe, steps), *([f"{len(same)} seeds"] if len(same) > 1 else [])])
        means = (f"{mean(row['cpu_seconds'] for row in same):.0f}", f"{mean(row['spearman'] for row in same):.2f}")
        marked = [f"**{cell}**" if kind == left_out else cell for kind, cell in zip(KINDS, cosines, strict=True)]
        cells.append([settings, left_out, *means, *marked])
    spread = f"Largest difference of a cosine between seeds: {max(apart):.4f}."
    return f"{left_out_table(rows)}\n\n{markdown(headings, cells)}\n\n{spread}"


def takes_steps(recipe: str) -> bool:
    """Whether any number of steps may be asked for."""
    return recipe == "Adam" or (recipe in RECIPES and "steps" not in RECIPES[recipe])


def titled(model: str, recipe: str, steps: int) -> str:
    """What a row is of."""
    said = takes_steps(recipe) and (recipe == "Adam" or steps != STEPS)
    return ", ".join([model, *([] if recipe == "default" else [recipe]), *([f"{steps} steps"] if said else [])])


def left_out_table(rows: list[dict[str, Any]]) -> str:
    """What is kept of each kind where healing has not seen it, and where it has; the mean over the seeds."""
    kept_of: dict[tuple[str, str, int], dict[tuple[str, str], list[float]]] = {}
    for row in rows:
        of_model = kept_of.setdefault((row["model"], row["recipe"], row["steps"]), {})
        for kind in KINDS:
            if row["left_out"] in ("none", kind):
                of_model.setdefault((kind, row["left_out"]), []).append(row[kind])
    cells = []
    for key, of_model in sorted(kept_of.items()):
        pairs = [(of_model.get((kind, kind)), of_model.get((kind, "none"))) for kind in KINDS]
        if all(seen for _, seen in pairs) and any(unseen for unseen, _ in pairs):
            cells.append(
                [
                    titled(*key),
                    *(f"{mean(unseen):.3f} ({mean(seen or [0]):.3f})" if unseen else "" for unseen, seen in pairs),
                ]
            )
    return markdown(["left out (and seen)", *KINDS], cells)


def grouped(rows: list[dict[str, Any]]) -> Iterator[tuple[tuple[Any, ...], list[dict[str, Any]]]]:
    """The rows of each model, of all seeds, those that were healed on all kinds first."""

    def key(row: dict[str, Any]) -> tuple[Any, ...]:
        return row["left_out"] != "none", row["left_out"], row["model"], row["recipe"], row["steps"]

    for group, same in itertools.groupby(sorted(rows, key=key), key):
        yield group, list(same)


if __name__ == "__main__":
    main()
