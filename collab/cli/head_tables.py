"""Heads and attention layers as tables in the terminal, in 80 columns."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console
from rich.table import Table

from ..heads.options import SCORES
from ..steps.compression import CompressedLayer
from ..steps.step import shortened
from .tables import cache_sentence, plain_table

if TYPE_CHECKING:
    from ..heads.inspection import Inspection, LayerInspection
    from ..heads.scores import HeadScores

_NUMBERS = 64
"""Characters of a line for the numbers of heads; the rest is for the layer's name."""


def show_scores(scores: HeadScores, second: HeadScores | None, notes: Sequence[str]) -> None:
    """Every score as a table of layers and heads, the least important heads, and how scores agree."""
    from ..heads.scores import rank_correlation

    console = Console()
    _, names = shortened(list(scores.layers))
    for name in scores.scores:
        for table in _grids(scores, name, names):
            console.print(table)
    chosen = "gradient" if "gradient" in scores.scores else next(iter(scores.scores))
    ranked = sorted(
        (value, layer, head)
        for layer, values in zip(names, scores.importance(chosen).values(), strict=True)
        for head, value in values.items()
    )
    # Of some scores, such as entropy, heads with more of it matter less.
    least = ", ".join(f"{layer}:{head}" for _, layer, head in ranked[: max(1, len(ranked) // 10)])
    console.print(f"Least important by {chosen}, as layer:head: {least}", highlight=False)
    if len(scores.scores) > 1:
        correlations = scores.correlations()[chosen]
        others = ", ".join(f"{name} {value:.2f}" for name, value in correlations.items() if name != chosen)
        console.print(f"Rank correlation with {chosen}, each so that more matters more: {others}", highlight=False)
    if second is not None:
        agreed = ", ".join(
            f"{name} {rank_correlation(scores.importance(name), second.importance(name)):.2f}" for name in scores.scores
        )
        console.print(f"Rank correlation with the same score on {second.data['source']}: {agreed}", highlight=False)
    for note in notes:
        console.print(note, markup=False, highlight=False)


def _grids(scores: HeadScores, name: str, names: Sequence[str]) -> Iterator[Table]:
    """A score by layer and head, in as many tables as the heads need."""
    grid = scores.grid(name)
    largest = float(np.nanmax(np.abs(grid)))
    meaning = SCORES[name][1] + (f" ({scores.degradation_name})" if name in ("ablation", "alone") else "")
    rows = [["" if math.isnan(value) else f"{value:.0f}" for value in row] for row in 100 * grid / max(largest, 1e-30)]
    width = max(len(str(scores.total)), *(len(text) for row in rows for text in row))
    at_once = _NUMBERS // (width + 2)
    for start in range(0, scores.total, at_once):
        heads = range(start, min(start + at_once, scores.total))
        last = heads[-1] == scores.total - 1
        table = plain_table(
            f"{name}: {meaning}" if start == 0 else f"{name}, heads {heads[0]} to {heads[-1]}",
            ["layer", *map(str, heads)],
            caption=f"in hundredths of {largest:.3g}; {'high' if SCORES[name][0] > 0 else 'low'} where a head matters"
            if last
            else None,
            padding=(0, 1, 0, 0),
        )
        for layer, row in zip(names, rows, strict=True):
            table.add_row(layer, *(row[head] for head in heads))
        yield table


def show_inspection(inspection: Inspection) -> None:
    """Shapes, parameters and arithmetic of every attention layer."""
    console = Console()
    pattern, names = shortened([layer.name for layer in inspection.layers])
    first = inspection.layers[0]
    shapes = plain_table(f"{inspection.model_type}: parameters of {pattern}, layer {names[0]}", ["name", "shape"])
    for name, shape in first.shapes.items():
        shapes.add_row(name, "×".join(map(str, shape)))
    console.print(shapes)
    groups = _alike(inspection.layers, names)
    layers = plain_table(
        "Attention layers",
        ["layer", "kind", "form", "heads", "d", "rank", "query/key", "value/output"],
        caption="kind: of an encoder, causal in a decoder, or across from a decoder to an encoder; rank: query/key "
        "dimensions of all heads together; query/key, value/output: parameters",
        left=3,
    )
    for group, layer in groups:
        numbers = (layer.heads, layer.head_dim, layer.rank, layer.query_key, layer.value_output)
        layers.add_row(group, layer.kind, layer.form, *(f"{number:,}" for number in numbers))
    console.print(layers)
    if any(layer.form != "original" for layer in inspection.layers):
        console.print(_widths(groups))
    for table in _work(groups, list(first.flops)):
        console.print(table)
    count = inspection.parameters
    console.print(
        f"Queries and keys have {count['query_key']:,} parameters, {count['query_key'] / count['attention']:.1%} of "
        f"attention and {count['query_key'] / count['model']:.1%} of the model's {count['model']:,}.",
        highlight=False,
    )
    if inspection.cache is not None:
        console.print(cache_sentence(inspection.cache), highlight=False)
    for sentence in (*inspection.explanation, *_past(inspection)):
        console.print(sentence, markup=False, highlight=False)


def _widths(groups: Sequence[tuple[str, LayerInspection]]) -> Table:
    """What is left of every part of every layer."""
    known = any(layer.neurons is not None for _, layer in groups)
    table = plain_table("Widths, of those in the original", CompressedLayer.HEADINGS[: 4 if known else 3])
    for group, layer in groups:
        total = layer.rank_original
        row = [f"{layer.rank} of {total}", f"{layer.value_width} of {layer.head_dim}" if layer.heads else ""]
        neurons = "" if layer.neurons is None else f"{layer.neurons} of {layer.neurons_original}"
        table.add_row(group, *row, *[neurons] * known)
    return table


def _work(groups: Sequence[tuple[str, LayerInspection]], lengths: Sequence[int]) -> Iterator[Table]:
    """The arithmetic of every layer, three lengths at a time."""
    for start in range(0, len(lengths), 3):
        several = lengths[start : start + 3]
        table = plain_table(
            "Million FLOPs, two for a multiply-add, of queries, keys and scores, for one row",
            ["layer", *(f"{length} tokens" for length in several)],
            caption="in brackets the part of the original's",
        )
        for group, layer in groups:
            pairs = [(layer.flops[length], layer.flops_original[length]) for length in several]
            table.add_row(group, *(f"{flops / 1e6:,.1f} ({flops / original:.2f})" for flops, original in pairs))
        yield table


def _past(inspection: Inspection) -> list[str]:
    """The history of the model, in sentences."""
    history = inspection.history
    if not history:
        return []
    lines = []
    if history.done_before:
        lines.append(f"Its original was {history.done_before} before.")
    if history.done:
        lines.append(f"It was made{f' from {history.source}' if history.source else ''}: {history.done}.")
    layers = history.layers
    if layers and not history.only_layout:  # a report of a compression has no layers
        weights = any(layer["score_error"] is None for layer in layers)
        errors = (layer["error" if weights else "score_error"] for layer in layers)
        lines.append(
            f"When it was converted, the relative errors of the {'query-key products' if weights else 'scores'} were, "
            f"by layer, {', '.join(f'{error:.3f}' for error in errors)}."
        )
    return [*lines, "More is in collab_report.json."]


def _alike(layers: Sequence[LayerInspection], names: Sequence[str]) -> list[tuple[str, LayerInspection]]:
    """Layers that differ in nothing but their name together, in a row."""
    groups: list[tuple[list[str], LayerInspection]] = []
    for name, layer in zip(names, layers, strict=True):
        if groups and replace(groups[-1][1], name="") == replace(layer, name=""):
            groups[-1][0].append(name)
        else:
            groups.append(([name], layer))
    return [(group[0] if len(group) == 1 else f"{group[0]} to {group[-1]}", layer) for group, layer in groups]
