"""Options on attention in long rows."""

from __future__ import annotations

from typing import get_args

import click

from ...planning.long_rows import Attention, LongOptions, PositionsRule, read_attention, read_layers
from ..command import Decorator, Parsed, grouped


def attention_option(default: Attention) -> Decorator:
    """--attention, with its default."""
    return grouped(
        "Long rows",
        click.option(
            "--attention",
            type=Parsed("attention", read_attention),
            metavar=f"[{'|'.join(get_args(Attention))}]",
            default=default,
            help="How long rows are computed. dense: like short ones. local: a token sees the tokens near it. "
            "summaries: and the rest of the row in groups.",
        ),
    )


long_options = grouped(
    "Long rows",
    click.option("--block", default=LongOptions.block, help="Tokens see their block of so many, and those beside it."),
    click.option(
        "--global-tokens", default=LongOptions.global_tokens, help="So many first tokens see all, and are seen by all."
    ),
    click.option(
        "--summaries",
        metavar="mean:N|stride:N",
        default=LongOptions.summaries,
        help="What stands for N tokens of the rest: their mean, or the first of them.",
    ),
    click.option("--dense-below", default=LongOptions.dense_below, help="Rows of fewer tokens are computed as before."),
    click.option(
        "--dense-layers",
        type=Parsed("layers", read_layers),
        default=(),
        show_default="none",
        metavar="1,4",
        help="Layers, numbered from 0, that stay as they are at every length.",
    ),
    click.option(
        "--positions",
        type=click.Choice(get_args(PositionsRule)),
        default=LongOptions.positions,
        help="Positions up to --max-length, where the model has fewer. copy: repeat the table, or let rotary positions "
        "go on. interpolate: stretch them, which changes short rows too.",
    ),
)
"""What belongs to --attention, but for --max-length, which commands on rows of data have for these, too."""
