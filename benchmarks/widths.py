"""Whether the widths that `collab compress` chooses before any healing are the best after it.

The demo checkpoint at half of its layers' arithmetic with all layers, calibrated and healed on six kinds of text for
200 steps as `collab compress` does by default: with the widths that it chooses, and with some of them changed while the
neurons of all layers make up for it. The loss before healing is 1 less the cosine of embeddings on held-out rows.

    OMP_NUM_THREADS=1 python benchmarks/widths.py [--variant "values of a head, 4 more"]

Without options all are measured, about five CPU minutes each. Writes results/widths.json and .md; rows are kept as they
finish.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from statistics import mean
from typing import Any

from common import kept, machine, markdown, my_turn, write
from kinds import KINDS
from recovery import Candidates

from collab.planning.allocation import Widths
from collab.planning.budget import Part

HALF = 0.5
CLOSE_TO = 0.499
"""What changed widths are to have of the arithmetic; those that are chosen have 0.4995."""
STEPS = 200
HEADS = 12
NEURONS = 1536

_LAST = 5

Change = tuple[Part, Callable[[int, int], float]]
"""A part, and its new width by the number of the layer and the width that was chosen; in heads, of one head."""


def _neurons(times: float, *layers: int) -> Change:
    return "feed-forward", lambda layer, width: width * times if layer in layers else width


VARIANTS: dict[str, Change | None] = {
    "as chosen": None,
    "first layer, 0.7 times the neurons": _neurons(0.7, 0),
    "first layer, 1.3 times the neurons": _neurons(1.3, 0),
    "second and third layer, 0.75 times the neurons": _neurons(0.75, 1, 2),
    "last layer, 0.75 times the neurons": _neurons(0.75, _LAST),
    "last layer, 1.3 times the neurons": _neurons(1.3, _LAST),
    "queries and keys of a head, at most 8": ("queries-keys", lambda layer, width: min(width, 8)),
    "queries and keys of a head, at least 12": ("queries-keys", lambda layer, width: max(width, 12)),
    "values of a head, 4 fewer but for the last layer": (
        "values",
        lambda layer, width: width if layer == _LAST else width - 4,
    ),
    "values of a head, 4 more": ("values", lambda layer, width: min(width + 4, 32)),
}


def changed(candidates: Candidates, chosen: Widths, change: Change) -> Widths:
    """Changed widths at half of the arithmetic: all layers have so many times the neurons for it."""
    part, new = change
    by_part: dict[str, Sequence[float]] = {**_by_part(chosen)}
    by_part[part] = [new(layer, width) for layer, width in enumerate(_by_part(chosen)[part])]

    def widths_at(times: float) -> Widths:
        return tuple(
            {
                "queries-keys": HEADS * int(queries),
                "values": int(values),
                "feed-forward": min(NEURONS, 16 * round(times * neurons / 16)),
            }
            for queries, values, neurons in zip(*by_part.values(), strict=True)
        )

    every = [widths_at(0.4 + number / 400) for number in range(500)]
    return min(every, key=lambda widths: abs(candidates.arithmetic(widths) - CLOSE_TO))


def _by_part(widths: Widths) -> dict[str, list[int]]:
    """Widths by layer: queries and keys of a head, values of a head, neurons."""
    layers = [chosen or {} for chosen in widths]
    return {
        "queries-keys": [layer["queries-keys"] // HEADS for layer in layers],
        "values": [layer["values"] for layer in layers],
        "feed-forward": [layer["feed-forward"] for layer in layers],
    }


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """A row for every variant, the cosines as what they gain over those of the chosen widths."""
    chosen = next((row for row in rows if VARIANTS[row["variant"]] is None), None)
    cells = []
    for row in sorted(rows, key=lambda row: list(VARIANTS).index(row["variant"])):
        gains = chosen is not None and row is not chosen
        cosines = [row[kind] - chosen[kind] if gains and chosen else row[kind] for kind in KINDS]
        shown = [f"{value:{'+' if gains else ''}.4f}" for value in (*cosines, mean(cosines))]
        cells.append([row["variant"], f"{row['arithmetic']:.4f}", f"{row['before']:.4f}", *shown])
    return markdown(["", "arithmetic", "loss before", *KINDS, "mean"], cells)


def main() -> None:
    """Measures what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--variant", action="append", choices=tuple(VARIANTS))
    options = parser.parse_args()
    there = {row["variant"] for row in kept("widths").get("rows", [])}
    missing = [name for name in options.variant or VARIANTS if name not in there]
    if not missing:
        return
    candidates = Candidates(1024)
    chosen = candidates.chosen(HALF)
    for name in missing:
        change = VARIANTS[name]
        row = measured(candidates, chosen if change is None else changed(candidates, chosen, change))
        with my_turn("widths"):
            rows = [*kept("widths").get("rows", []), {"variant": name} | row]
            write("widths", {"machine": machine(), "rows": rows}, table(rows))


def measured(candidates: Candidates, widths: Widths) -> dict[str, Any]:
    """A row: the widths, and what is kept before and after healing."""
    model, before = candidates.at(widths)
    row = {"arithmetic": candidates.arithmetic(widths), "before": before}
    return _by_part(widths) | row | candidates.healed(model, steps=STEPS)


if __name__ == "__main__":
    main()
