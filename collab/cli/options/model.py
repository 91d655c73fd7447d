"""Options on the model that a command reads, the one that it writes, and where it computes."""

from __future__ import annotations

from pathlib import Path

import click

from ...device import DEVICES, DTYPES
from ...io.options import LoadOptions, SaveOptions
from ..command import Decorator, combined, gathers, grouped

model_weights = gathers(
    "load_options",
    LoadOptions,
    click.argument("model"),
    grouped("Expert", click.option("--revision", help="Branch, tag or commit of MODEL on the Hub.")),
)
"""MODEL, of which nothing but config and weights is read."""

model_in = combined(
    model_weights,
    grouped(
        "Expert",
        click.option(
            "--trust-remote-code", is_flag=True, help="Run a tokenizer's code that comes with the checkpoint."
        ),
    ),
)
"""MODEL, and how to read it."""

model_out = gathers(
    "save_options",
    SaveOptions,
    click.argument("output", type=click.Path(path_type=Path)),
    grouped(
        "Output",
        click.option("--overwrite", is_flag=True, help="Replace a model that collab wrote to OUTPUT."),
        click.option(
            "--base-model",
            metavar="ID",
            show_default="MODEL, or the base_model in its card",
            help="Hub id of the original, for the model card.",
        ),
    ),
)
"""OUTPUT, and how to write it."""

keep_tokens_option = grouped(
    "Data",
    click.option(
        "--keep-tokens",
        metavar="FILE|auto",
        help="Leave out of tokenizer and embedding all tokens that this text does not use: a file, of a table the text "
        "in every column, or auto for the text of --calibration or --heal. Exact on text of the same tokens; other "
        "words are split or become unknown.",
    ),
)
shard_option = grouped(
    "Expert",
    click.option(
        "--shard",
        is_flag=True,
        help="Let several processes share the weights of models, sums and optimizer, of which each keeps a part.",
    ),
)

seed_option = grouped(
    "Expert",
    click.option(
        "--seed", type=click.IntRange(0, 2**32 - 1), default=0, help="Seed of everything that is drawn at random."
    ),
)


def dtype_option(default: str | None, says: str | None = None) -> Decorator:
    """--dtype, with a default or what the help says of it."""
    return grouped(
        "Expert",
        click.option(
            "--dtype", type=click.Choice(DTYPES), default=default, show_default=says, help="Dtype of the weights."
        ),
    )


def device_option(default: str = "cuda if there is a GPU, else cpu") -> Decorator:
    """--device, with what the help says of its default."""
    return grouped(
        "Expert",
        click.option("--device", type=click.Choice(DEVICES), show_default=default, help="Where to compute."),
    )
