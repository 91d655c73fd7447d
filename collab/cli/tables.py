"""Reports and plans as tables in the terminal. They fit 80 columns: long names are wrapped, never cut."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.table import Table

from ..steps.compression import CompressedLayer
from ..steps.step import shortened

if TYPE_CHECKING:
    from ..models.cache import CacheBytes
    from ..planning.budget import Part
    from ..planning.plan import Plan, PlanOption, Spectrum

_WIDTH = 80

_FASTER = 1.1
"""A form with which a step reads fewer weights by this factor is not named."""

_PARTS: tuple[Part, ...] = ("queries-keys", "values", "feed-forward")
_CROSS_PARTS: tuple[Part, ...] = ("cross-queries-keys", "cross-values")


def show_plan(plan: Plan, name: str) -> None:
    """The budgets of a plan of the model of that name, and what each would give."""
    console = Console()
    options = sorted(plan.options, key=lambda option: (-option.model, option.form))
    console.print(_budgets(plan, options, name))
    console.print(_running_costs(plan, options))
    for sentence in not_faster_at_writing(options):
        console.print(sentence, highlight=False)
    if plan.spectra:
        console.print(_components(plan.spectra))
        console.print(f"{plan.recommendation} {plan.refinement}", highlight=False)
        return
    for option in options:
        console.print(_widths(plan, option))


def _budgets(plan: Plan, options: Sequence[PlanOption], name: str) -> Table:
    """Error and size of every option."""
    left = [] if plan.spectra else [plan.unit, "left"]
    if plan.spectra:
        error = f"predicted, of the {'weights' if plan.calibration is None else 'scores'}, all layers together"
    else:
        error = (
            "predicted, of the outputs on held-out rows before any healing: one minus the cosine of embeddings, or the "
            "divergence of classes. It adds up the losses of every change alone"
        )
    table = plain_table(
        f"What each budget would give of {name}",
        ["form", "rank", *left, "error", "query/key", "all", ""],
        caption=f"error: {error}; query/key, all: the part of these parameters that is left; *: nothing smaller is "
        "closer.",
    )
    for option in options:
        asked = (f"{option.budget:g}", f"{option.reached:.3f}") if left else ()
        shares = (f"{option.query_key:.3f}", f"{option.model:.3f}", "*" if option.frontier else "")
        table.add_row(option.form, str(option.rank), *asked, _error(option.error), *shares)
    return table


def _components(spectra: Sequence[Spectrum]) -> Table:
    """How many principal components hold most of the energy of every layer."""
    pattern, names = shortened([spectrum.name for spectrum in spectra])
    table = plain_table(
        f"Principal components that hold 90 % of the energy: {pattern}",
        ["layer", "query", "key", "product"],
        caption="Of the heads' query matrices side by side, of the key matrices, and of their product (figure 1 of the "
        "paper). Few for the product, many for the others: the heads share dimensions.",
    )
    for name, layer in zip(names, spectra, strict=True):
        enough = (
            next(number for number, share in zip(layer.components, shares, strict=True) if share >= 0.9)
            for shares in (layer.query, layer.key, layer.product)
        )
        table.add_row(name, *map(str, enough))
    return table


def not_faster_at_writing(options: Sequence[PlanOption]) -> list[str]:
    """A sentence for each option of a model that writes that does not read a tenth less to write a token."""
    sentences = []
    for option in options:
        if option.step is None or option.step <= 1 / _FASTER:
            continue
        most = math.floor(100 / option.step) / 100
        worth = "no step faster" if most <= 1 else f"a step at most {most:.2f} times as fast"
        read = f"a token that is written reads {option.step:.2f} times the original's weights"
        sentences.append(f"{option.form}, rank {option.rank}: {read}, which alone makes {worth}.")
    return sentences


def _widths(plan: Plan, option: PlanOption) -> Table:
    """Widths of every layer within one budget."""
    pattern, names = shortened(list(plan.layers))
    crosses = any(part in full for full in plan.layers.values() for part in _CROSS_PARTS)
    headings = CompressedLayer.HEADINGS + CompressedLayer.CROSS_HEADINGS * crosses
    table = plain_table(f"{plan.unit} {option.budget:g}: {pattern}", headings)
    for name, full, left in zip(names, plan.layers.values(), option.widths, strict=True):
        if left is None:
            table.add_row(name, "dropped", *[""] * (len(headings) - 2))
        else:
            parts = _PARTS + _CROSS_PARTS * crosses
            table.add_row(name, *(f"{left[part]} of {full[part]}" if part in full else "" for part in parts))
    return table


def _running_costs(plan: Plan, choices: Sequence[PlanOption]) -> Table:
    """Arithmetic and cache of every option."""
    lengths = list(choices[0].flops)
    work = "query/key projections and scores" if plan.spectra else "the layers"
    columns, cache = [], ""
    step = [] if choices[0].step is None else ["a step"]
    if plan.cache is not None:
        columns, cache = (
            ["keys"],
            f"keys: bytes of keys in a cache for each token (the original's: {plan.cache.keys:,})",
        )
        if plan.cache.cross_keys:
            columns = ["keys", "cross\nkeys"]
            cache += (
                f"; cross keys: the same of cross-attention, for each token of the encoder ({plan.cache.cross_keys:,})"
            )
        cache += f"; in {plan.cache.dtype}. Values are as in the original."
        if step:
            cache += " a step: the part of the original's weights that a token being written reads."
    table = plain_table(
        "What it would cost to run",
        ["form", "rank", *(f"{length}\ntokens" for length in lengths), *columns, *step],
        caption=caption(
            f"tokens: the part of the original's arithmetic of {work} that is left, for a sequence of so many.",
            cache,
        ),
    )
    for option in choices:
        shares = (f"{option.flops[length]:.2f}" for length in lengths)
        held = (0, 0) if option.cache is None else (option.cache.keys, option.cache.cross_keys)
        sizes = (f"{size:,}" for size in held[: len(columns)])
        read = () if option.step is None else (f"{option.step:.2f}",)
        table.add_row(option.form, str(option.rank), *shares, *sizes, *read)
    return table


def cache_sentence(cache: CacheBytes) -> str:
    """The contents of a cache, in a sentence."""
    held = f"{cache.keys:,} bytes of keys and {cache.values:,} of values for each token"
    if cache.cross_keys:
        held += f" of the decoder, and {cache.cross_keys:,} and {cache.cross_values:,} for each token of the encoder"
    most = "" if cache.held is None else f"; at most {cache.held:,} for a row of {cache.longest:,} tokens"
    return f"A cache holds {held}, in {cache.dtype}{most}."


def plain_table(
    title: str, headings: Sequence[str], *, caption: str | None = None, left: int = 1, **more: Any
) -> Table:
    """A table as all commands show them.

    Args:
        title: above it.
        headings: of its columns.
        caption: below it.
        left: how many columns, the first ones, are names, which are wrapped where they are long. The others are
            numbers, which are not.
        more: further arguments of `rich.table.Table`.
    """
    table = Table(
        title=title,
        caption=caption,
        box=box.SIMPLE_HEAD,
        title_justify="left",
        caption_justify="left",
        min_width=min(len(title), _WIDTH),  # so that the title is not wrapped before it has to be
        **{"padding": (0, 1)} | more,
    )
    for number, heading in enumerate(headings):
        if number < left:
            table.add_column(heading, overflow="fold")
        else:
            table.add_column(heading, justify="right", no_wrap=True)
    return table


def caption(*parts: str) -> str:
    """The parts that are not empty, as one text below a table."""
    return " ".join(part for part in parts if part)


def _error(error: float | None) -> str:
    return "" if error is None else f"{error:.4f}"
