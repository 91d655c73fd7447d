"""Compression healed on some kinds of text and judged on one that it has never seen.

The demo checkpoint is compressed to half or a third of its layers' arithmetic, or by dropping three layers, calibrated
and healed on five of six kinds of text (STS-B, SST-2, WikiText-2, Multi30k, questions, dialogue) and judged on the
sixth, by the cosine to the original's embeddings; ``none`` left out heals on all six. Recipes: ``now`` is what `collab
compress` does by default, ``before`` what it did before (200 steps of 64 rows, at 5e-4 to 1e-3).

    python benchmarks/unseen.py [--left-out dialogue] [--model half] [--recipe now] [--seed 0] [--steps 1200]

Each option may be given several times; without them all are run, about ten CPU minutes for each row of the table.
Writes results/unseen.json and .md; rows are kept as they finish, and models healed on all kinds in work/kinds.
"""

from __future__ import annotations

import argparse
import itertools
import shutil
from pathlib import Path
from typing import Any

from common import kept, machine, markdown, my_turn, write
from kinds import BUDGETS, KINDS, STEPS, Judge, made

import collab

WORK = Path(__file__).parent / "work" / "kinds"
RECIPES: dict[str, dict[str, Any]] = {
    "now": {},
    "whole rows, 1200 steps": {"steps": 1200, "fragments": 0.0},
    "200 steps of 64 whole rows": {"steps": 200, "batch_size": 64, "fragments": 0.0},
    "600 steps of 64 whole rows": {"steps": 600, "batch_size": 64, "fragments": 0.0},
}


def main() -> None:
    """Runs what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, known in (("left-out", ("none", *KINDS)), ("model", tuple(BUDGETS)), ("recipe", tuple(RECIPES))):
        parser.add_argument(f"--{name}", action="append", choices=known)
    parser.add_argument("--seed", action="append", type=int)
    parser.add_argument("--steps", type=int, default=STEPS)
    chosen = parser.parse_args()
    judge = None
    for left_out, model, recipe, seed in itertools.product(
        chosen.left_out or ("none", *KINDS), chosen.model or BUDGETS, chosen.recipe or RECIPES, chosen.seed or (0, 1, 2)
    ):
        settings = {"steps": chosen.steps} | RECIPES[recipe]
        key = {"left_out": left_out, "model": model, "recipe": recipe, "seed": seed, "steps": settings["steps"]}
        if any(key.items() <= row.items() for row in kept("unseen").get("rows", [])):
            continue
        judge = judge or Judge()
        folder = WORK / "-".join([model.replace(" ", "-"), left_out, recipe, str(settings["steps"]), str(seed)])
        kinds = [kind for kind in KINDS if kind != left_out]
        seconds = made(model, folder, kinds, seed=seed, **settings)
        row = key | {"cpu_seconds": seconds} | judge.measure(collab.load(str(folder)).model)
        if left_out != "none":
            shutil.rmtree(folder)
        with my_turn("unseen"):
            rows = [*kept("unseen").get("rows", []), row]
            write("unseen", {"machine": machine(), "rows": rows}, table(rows))


def table(rows: list[dict[str, Any]]) -> str:
    """A row for each model; the kind that was left out in bold."""
    headings = ["model", "left out", "CPU s", "Spearman", *KINDS]
    cells = []
    for row in sorted(rows, key=lambda row: (row["left_out"] != "none", row["left_out"], row["model"], row["recipe"])):
        cosines = [f"**{row[kind]:.4f}**" if kind == row["left_out"] else f"{row[kind]:.4f}" for kind in KINDS]
        settings = ", ".join(
            [
                row["model"],
                *([] if row["recipe"] == "now" else [row["recipe"]]),
                *([] if row["recipe"] != "now" or row["steps"] == STEPS else [f"{row['steps']} steps"]),
                *([f"seed {row['seed']}"] if row["seed"] else []),
            ]
        )
        cells.append([settings, row["left_out"], f"{row['cpu_seconds']:.0f}", f"{row['spearman']:.2f}", *cosines])
    return markdown(headings, cells)


if __name__ == "__main__":
    main()
