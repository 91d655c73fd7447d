"""Options on training, and on healing within another command."""

from __future__ import annotations

from typing import get_args

import click

from ...training.options import PRECISIONS, HealOptions, Optimizer, RunOptions, Trainable
from ..command import Decorator, gathers, grouped, only_with
from .data import SEVERAL, SOURCES
from .model import device_option, seed_option, shard_option

restart_option = grouped(
    "Output",
    click.option("--restart", is_flag=True, help="Forget unfinished training of OUTPUT instead of going on with it."),
)


def training_steps_option(default: int | None) -> Decorator:
    """--steps, where they are steps of training."""
    says = "by --epochs" if default is None else None
    return click.option(
        "--steps", type=int, default=default, show_default=says, help="Steps of training, each of --batch-size rows."
    )


def learning_rate_option(default: float | None, says: str | None = None) -> Decorator:
    """--learning-rate, with a default or what the help says of it."""
    return grouped(
        "Training",
        click.option(
            "--learning-rate", type=float, default=default, show_default=says, help="The highest learning rate."
        ),
    )


def teacher_option(default: str) -> Decorator:
    """--teacher, with what the help says of its default."""
    return click.option("--teacher", metavar="MODEL", show_default=default, help="A model to learn from.")


def trainable_option(default: str, flag: str = "--trainable") -> Decorator:
    """--trainable, or that of healing within another command."""
    return click.option(
        flag,
        type=click.Choice(get_args(Trainable)),
        default=default,
        help="What to train. factors: shared projections, mixing matrices or cores, content. attention: values and "
        "output projections too. layers: everything in the layers. all: the whole model.",
    )


def fragments_option(default: float, flag: str = "--fragments") -> Decorator:
    """--fragments, or that of healing within another command."""
    return click.option(
        flag,
        type=float,
        default=default,
        help="Part of the rows to cut to fragments of a few tokens, which heals an embedder for more kinds of text. "
        "Rows of classifiers stay whole.",
    )


def joined_option(default: float, flag: str = "--joined") -> Decorator:
    """--joined, or that of healing within another command."""
    return click.option(
        flag,
        type=float,
        default=default,
        help="Part of the rows to lengthen by other rows, to at most 256 tokens, which heals an embedder for longer "
        "texts. Rows of classifiers stay as they are.",
    )


def optimizer_option(flag: str = "--optimizer") -> Decorator:
    """--optimizer, of healing."""
    return click.option(
        flag,
        type=click.Choice(get_args(Optimizer)),
        default=HealOptions.optimizer,
        help="What trains. muon: for whole layers, with --batch-size 128.",
    )


def beams_option(flag: str = "--beams") -> Decorator:
    """--beams, or that of healing within another command."""
    return click.option(
        flag,
        type=int,
        default=1,
        help="Beams of the search by which the original of an encoder-decoder writes targets for sources alone.",
    )


def training_options(default: RunOptions) -> Decorator:
    """How to train, gathered as ``run`` with all other options of that name.

    Args:
        default: the values that are not given.
    """
    return grouped(
        "Training",
        gathers(
            "run",
            RunOptions,
            click.option("--batch-size", default=default.batch_size, help="Rows of a batch."),
            click.option(
                "--gradient-accumulation-steps",
                default=default.gradient_accumulation_steps,
                help="Pieces that a batch is computed in, one after the other, to save memory.",
            ),
            click.option(
                "--warmup", default=default.warmup, help="Part of the steps over which the learning rate rises."
            ),
            click.option("--weight-decay", default=default.weight_decay, help="Weight decay."),
            click.option(
                "--evaluations",
                default=default.evaluations,
                help="How often to measure on the held-out rows and keep a checkpoint.",
            ),
            click.option("--patience", type=int, help="Stop after so many evaluations without improvement."),
            click.option(
                "--precision",
                type=click.Choice(PRECISIONS),
                default=default.precision,
                help="Precision of the arithmetic. auto: bfloat16 where the processor multiplies it faster.",
            ),
            click.option("--gradient-checkpointing", is_flag=True, help="Less memory, more time."),
            device_option(),
            seed_option,
            shard_option,
        ),
    )


def heal_options(steps: int | None, says: str | None = None) -> Decorator:
    """--heal, --heal-steps and --restart.

    Args:
        steps: the default number of steps.
        says: what the help says of the rows that are healed on by default; None if nothing is healed without --heal.
    """
    heal = click.option(
        "--heal",
        metavar="SOURCE",
        multiple=True,
        show_default=says,
        help=f"Heal the result afterwards, without labels, on: {SOURCES}. {SEVERAL}",
    )
    heal_steps = click.option("--heal-steps", type=int, default=steps, help="Steps of healing.")
    if says is None:
        return grouped("Healing", heal, only_with("heal", heal_steps, restart_option))
    return grouped("Healing", only_with("heal_steps", heal), heal_steps, restart_option)
