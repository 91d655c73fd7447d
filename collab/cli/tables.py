"""Reports and plans as tables in the terminal. They fit 80 columns: long names are wrapped, never cut."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.table import Table

from ..steps.step import shortened

if TYPE_CHECKING:
    from ..compression.compress import CompressionPlan
    from ..models.cache import CacheBytes
    from ..planning.plan import Plan, PlanOption

_WIDTH = 80


def show_plan(plan: Plan) -> None:
    """What a conversion would cost."""
    console = Console()
    choices = sorted(plan.options, key=lambda option: (-option.query_key, option.form))
    console.print(_faithfulness(plan, choices))
    console.print(_running_costs(plan, choices))
    pattern, names = shortened([spectrum.name for spectrum in plan.spectra])
    table = plain_table(
        f"Principal components that hold 90 % of the energy: {pattern}",
        ["layer", "query", "key", "product"],
        caption="Of the heads' query matrices side by side, of the key matrices, and of their product (figure 1 of the "
        "paper). Few for the product, many for the others: the heads share dimensions.",
    )
    for name, layer in zip(names, plan.spectra, strict=True):
        enough = (
            next(number for number, share in zip(layer.components, shares, strict=True) if share >= 0.9)
            for shares in (layer.query, layer.key, layer.product)
        )
        table.add_row(name, *map(str, enough))
    console.print(table)
    console.print(f"{plan.recommendation} {plan.refinement}", highlight=False)


def show_compression_plan(plan: CompressionPlan) -> None:
    """What compressions of several budgets would lose."""
    console = Console()
    table = plain_table(
        "Budgets",
        [plan.unit, "left", "loss"],
        caption="loss: predicted, of the answers on held-out rows before any healing: one minus the cosine of "
        "embeddings, or the divergence of classes. It adds up the losses of every change alone.",
    )
    for option in plan.options:
        table.add_row(f"{option.budget:g}", f"{option.reached:.3f}", f"{option.predicted_loss:.4f}")
    console.print(table)
    for option in plan.options:
        pattern, names = shortened([layer.name for layer in option.layers])
        widths = plain_table(f"{plan.unit} {option.budget:g}: {pattern}", option.layers[0].HEADINGS)
        for name, layer in zip(names, option.layers, strict=True):
            widths.add_row(name, *layer.cells()[1:])
        console.print(widths)


def _faithfulness(plan: Plan, choices: Sequence[PlanOption]) -> Table:
    """Error and size of every option."""
    what = "weights" if plan.calibration is None else "scores"
    table = plain_table(
        "What each form would give",
        ["form", "rank", "error", "query/key", "model", ""],
        caption=f"error: predicted, of the {what}, all layers together; query/key, model: the part of the parameters "
        "that is left; *: nothing smaller is closer.",
    )
    for option in choices:
        shares = (f"{option.query_key:.3f}", f"{option.model:.3f}", "*" if option.frontier else "")
        table.add_row(option.form, str(option.rank), _error(option.error), *shares)
    return table


def _running_costs(plan: Plan, choices: Sequence[PlanOption]) -> Table:
    """Arithmetic and cache of every option."""
    lengths = list(choices[0].flops) if choices else []
    columns, cache = [], ""
    if plan.cache is not None:
        columns, cache = (
            ["keys"],
            f"keys: bytes of keys in a cache for each token (the original's: {plan.cache.keys:,})",
        )
        if plan.cache.cross_keys:
            columns = ["keys", "cross keys"]
            cache += (
                f"; cross keys: the same of cross-attention, for each token of the encoder ({plan.cache.cross_keys:,})"
            )
        cache += f"; in {plan.cache.dtype}. Values are as in the original."
    table = plain_table(
        "What it would cost to run",
        ["form", "rank", *(f"{length} tokens" for length in lengths), *columns],
        caption=caption(
            "tokens: the part of the original's arithmetic of query/key projections and scores that is left, for a "
            "sequence of so many.",
            cache,
        ),
    )
    for option in choices:
        work = (f"{option.flops[length]:.2f}" for length in lengths)
        held = (0, 0) if option.cache is None else (option.cache.keys, option.cache.cross_keys)
        table.add_row(option.form, str(option.rank), *work, *(f"{size:,}" for size in held[: len(columns)]))
    return table


def cache_sentence(cache: CacheBytes) -> str:
    """What a cache holds."""
    held = f"{cache.keys:,} bytes of keys and {cache.values:,} of values for each token"
    if cache.cross_keys:
        held += f" of the decoder, and {cache.cross_keys:,} and {cache.cross_values:,} for each token of the encoder"
    return f"A cache holds {held}, in {cache.dtype}."


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
