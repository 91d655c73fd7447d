"""Heads and attention layers as tables in the terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console

from ..heads.inspection import Inspection, LayerInspection
from .tables import plain_table, shortened

if TYPE_CHECKING:
    from ..heads.scores import HeadScores


def show_scores(scores: HeadScores, second: HeadScores | None, notes: Sequence[str]) -> None:
    """Every score as a table of layers and heads, the least important heads, and how scores agree."""
    from ..heads.options import SCORES
    from ..heads.scores import rank_correlation

    console = Console()
    _, names = shortened(list(scores.layers))
    for name in scores.scores:
        grid = scores.grid(name)
        largest = float(np.nanmax(np.abs(grid)))
        meaning = SCORES[name][1] + (f" ({scores.harm_name})" if name in ("ablation", "alone") else "")
        table = plain_table(
            f"{name}: {meaning}",
            f"in hundredths of {largest:.3g}; {'high' if SCORES[name][0] > 0 else 'low'} where a head matters",
        )
        table.add_column("layer")
        for head in range(scores.total):
            table.add_column(str(head), justify="right")
        for layer, row in zip(names, 100 * grid / max(largest, 1e-30), strict=True):
            table.add_row(layer, *("" if math.isnan(value) else f"{value:.0f}" for value in row))
        console.print(table)
    chosen = "gradient" if "gradient" in scores.scores else next(iter(scores.scores))
    ranked = sorted(
        (value, layer, head)
        for layer, values in zip(names, scores.importance(chosen).values(), strict=True)
        for head, value in values.items()
    )
    least = ", ".join(f"{layer}:{head}" for _, layer, head in ranked[: max(1, len(ranked) // 10)])
    console.print(f"Least {chosen}, as layer:head: {least}", highlight=False)
    if len(scores.scores) > 1:
        found = scores.correlations()[chosen]
        others = ", ".join(f"{name} {value:.2f}" for name, value in found.items() if name != chosen)
        console.print(f"Rank correlation with {chosen}, each so that more matters more: {others}", highlight=False)
    if second is not None:
        agreed = ", ".join(
            f"{name} {rank_correlation(scores.importance(name), second.importance(name)):.2f}" for name in scores.scores
        )
        console.print(f"Rank correlation with the same score on {second.data['source']}: {agreed}", highlight=False)
    for note in notes:
        console.print(note, markup=False, highlight=False)


def show_inspection(found: Inspection) -> None:
    """Shapes, parameters and arithmetic of every attention layer, and why they are what they are."""
    console = Console()
    pattern, names = shortened([layer.name for layer in found.layers])
    first = found.layers[0]
    shapes = plain_table(f"{found.model_type}: parameters of {pattern}, layer {names[0]}")
    shapes.add_column("name")
    shapes.add_column("shape", justify="right")
    for name, shape in first.shapes.items():
        shapes.add_row(name, "×".join(map(str, shape)))
    console.print(shapes)
    groups = _alike(found.layers, names)
    layers = plain_table("Attention layers", "rank: query/key dimensions of all heads together")
    for heading in ("layer", "form", "heads", "d", "rank", "query/key", "value/output"):
        layers.add_column(heading, justify="left" if heading in ("layer", "form") else "right")
    for group, one in groups:
        numbers = (one.heads, one.head_dim, one.rank, one.query_key, one.value_output)
        layers.add_row(group, one.form, *(f"{number:,}" for number in numbers))
    console.print(layers)
    work = plain_table(
        "Million multiply-adds ×2 of queries, keys and scores, for one sequence",
        "in brackets the part of the original's",
    )
    work.add_column("layer")
    for length in first.flops:
        work.add_column(f"{length} tokens", justify="right")
    for group, one in groups:
        pairs = zip(one.flops.values(), one.flops_original.values(), strict=True)
        work.add_row(group, *(f"{flops / 1e6:,.1f} ({flops / original:.2f})" for flops, original in pairs))
    console.print(work)
    count = found.parameters
    console.print(
        f"Queries and keys have {count['query_key']:,} parameters, {count['query_key'] / count['attention']:.1%} of "
        f"attention and {count['query_key'] / count['model']:.1%} of the model's {count['model']:,}.",
        highlight=False,
    )
    for sentence in found.explanation:
        console.print(sentence, markup=False, highlight=False)
    for step in found.report.get("original_history", []):
        console.print(f"The original: {step['step']}.", highlight=False)
    settings = found.report.get("settings")
    if settings:
        errors = [
            one["score_error"] if one["score_error"] is not None else one["error"] for one in found.report["layers"]
        ]
        console.print(
            f"Converted from {found.report['source']} with rank {settings['rank']}, params {settings['params']}; "
            f"errors by layer {', '.join(f'{one:.3f}' for one in errors)}. More in collab_report.json.",
            highlight=False,
        )
    for step in found.report.get("history", []):
        console.print(f"Then: {step['step']}.", highlight=False)


def _alike(layers: Sequence[LayerInspection], names: Sequence[str]) -> list[tuple[str, LayerInspection]]:
    """Layers that differ in nothing but their name together, in a row."""
    groups: list[tuple[list[str], LayerInspection]] = []
    for name, layer in zip(names, layers, strict=True):
        if groups and replace(groups[-1][1], name="") == replace(layer, name=""):
            groups[-1][0].append(name)
        else:
            groups.append(([name], layer))
    return [(group[0] if len(group) == 1 else f"{group[0]} to {group[-1]}", one) for group, one in groups]
