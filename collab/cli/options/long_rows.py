"""Options on attention in long rows."""

from __future__ import annotations

from typing import get_args

import click

from ...data.source import DataSource
from ...errors import ConfigurationError
from ...planning.long_rows import Attention, LongOptions, PositionsRule, read_attention, read_layers
from ..command import Decorator, Parsed, gathers, grouped, once, only_with, switched_off_by
from .data import Unlabelled, unlabelled_options


def attention_option(default: Attention) -> Decorator:
    """--attention, with its default."""
    option = click.option(
        "--attention",
        type=Parsed("attention", read_attention),
        metavar=f"[{'|'.join(get_args(Attention))}]",
        default=default,
        help="How long rows are computed. dense: like short ones. local: a token sees the tokens near it. "
        "summaries: and the rest of the row in groups. In a decoder, tokens before it; its cache forgets others.",
    )
    return grouped("Long rows", switched_off_by("dense", option))


long_options = grouped(
    "Long rows",
    only_with(
        "attention",
        click.option(
            "--block",
            default=LongOptions.block,
            help="Tokens see their block of so many, and those beside it (in a decoder, the one before).",
        ),
        click.option(
            "--global-tokens",
            default=LongOptions.global_tokens,
            help="So many first tokens see all tokens and are seen by all.",
        ),
        only_with(
            "attention",
            click.option(
                "--summaries",
                metavar="mean:N|stride:N",
                default=LongOptions.summaries,
                help="What stands for N tokens of the rest: their mean, or the first of them.",
            ),
            at="summaries",
        ),
        click.option(
            "--dense-below", default=LongOptions.dense_below, help="Rows of fewer tokens are computed as before."
        ),
        click.option(
            "--dense-layers",
            type=Parsed("layers", read_layers),
            default=(),
            show_default="none",
            metavar="auto|1,4",
            help="Layers, numbered from 0, that stay as they are at every length. auto: those whose outputs blocks "
            "change most on a text, within --dense-budget.",
        ),
        only_with(
            "dense_layers",
            click.option(
                "--dense-budget",
                default=LongOptions.dense_budget,
                help="With --dense-layers auto, how much of the arithmetic of attention in the longest row to keep at "
                "most.",
            ),
            at="auto",
        ),
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


def _long_text(data: str | None, unlabelled: Unlabelled) -> DataSource | None:
    source = None if data is None else unlabelled.source(data)
    if isinstance(source, str):
        raise ConfigurationError("--dense-layers auto needs text; random words (synthetic) show no difference.")
    return source


long_text_options = gathers(
    "data",
    _long_text,
    only_with(
        "dense_layers",
        once(click.option("--data", help="Text for --dense-layers auto: a file or a data set on the Hub.")),
        at="auto",
    ),
    unlabelled_options(),
)
