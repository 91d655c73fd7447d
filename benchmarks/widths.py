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

HALF = 0.5
CLOSE_TO = 0.499
"""What changed widths are to have of the arithmetic; those that are chosen have 0.4995."""
STEPS = 200
HEADS = 12
NEURONS = 1536

Change = Callable[[dict[str, list[float]]], None]
"""Changes widths by part, those of all layers each: queries and keys of a head, values of a head, neurons."""


def _neurons(times: float, *layers: int) -> Change:
    def change(widths: dict[str, list[float]]) -> None:
        for layer in layers:
            widths["feed-forward"][layer] *= times

    return change


def _of_heads(part: str, new: Callable[[float], float]) -> Change:
    def change(widths: dict[str, list[float]]) -> None:
        widths[part] = [new(width) for width in widths[part]]

    return change


VARIANTS: dict[str, Change | None] = {
    "as chosen": None,
    "first layer, 0.7 times the neurons": _neurons(0.7, 0),
    "first layer, 1.3 times the neurons": _neurons(1.3, 0),
    "second and third layer, 0.75 times the neurons": _neurons(0.75, 1, 2),
    "last layer, 0.75 times the neurons": _neurons(0.75, 5),
    "last layer, 1.3 times the neurons": _neurons(1.3, 5),
    "queries and keys of a head, at most 8": _of_heads("queries-keys", lambda width: min(width, 8)),
    "queries and keys of a head, at least 12": _of_heads("queries-keys", lambda width: max(width, 12)),
    "values of a head, 4 fewer but for the last layer": _of_heads(
        "values", lambda width: width if width == 32 else width - 4
    ),
    "values of a head, 4 more": _of_heads("values", lambda width: min(width + 4, 32)),
}


def changed(candidates: Candidates, chosen: Widths, change: Change) -> Widths:
    """Changed widths at half of the arithmetic: all layers have so many times the neurons for it."""
    of_parts = {part: [float(width) for width in widths] for part, widths in _by_part(chosen).items()}
    change(of_parts)

    def widths_at(times: float) -> Widths:
        return tuple(
            {
                "queries-keys": HEADS * round(queries),
                "values": round(values),
                "feed-forward": min(NEURONS, 16 * round(times * neurons / 16)),
            }
            for queries, values, neurons in zip(*of_parts.values(), strict=True)
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
    candidates = Candidates(1024) if missing else None
    for name in missing:
        assert candidates is not None
        change, widths = VARIANTS[name], candidates.chosen(HALF)
        if change is not None:
            widths = changed(candidates, widths, change)
        row = measured(candidates, widths)
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
