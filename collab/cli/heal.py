"""`collab heal`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import click

from ..training.options import HealOptions, Trainable
from .options import (
    data_options,
    heal_source,
    loading_of,
    loading_options,
    overwrite_option,
    run_of,
    training_options,
    verbosity_options,
)
from .running import INTERRUPTED_TRAINING, bars, command_line, failures, set_up_logging
from .tables import show_step

_RUN = HealOptions().run


@click.command(
    epilog="""\b
Examples:
  collab heal converted healed --data sentences.txt
  collab heal converted healed --data pairs.csv --text-column 0 --text-column 1 --steps 1000"""
)
@click.argument("model")
@click.argument("output", type=click.Path(path_type=Path))
@click.option(
    "--data",
    default="synthetic",
    show_default=True,
    help="Text or images such as the model will see: a file, a folder of images, a data set on the Hub, or synthetic.",
)
@click.option("--split", default="train", show_default=True, help="Of a data set on the Hub.")
@data_options
@click.option("--teacher", help="The original.  [default: the one that the model's report names]")
@click.option(
    "--trainable",
    type=click.Choice(get_args(Trainable)),
    default="factors",
    show_default=True,
    help="factors: shared projections, mixing or cores, content. attention: values and output projections too.",
)
@click.option("--samples", type=int, default=HealOptions.samples, show_default=True, help="Rows at most.")
@click.option("--steps", type=int, default=_RUN.steps, show_default=True, help="Steps of --batch-size rows.")
@click.option("--learning-rate", type=float, help="[default: 1e-3, or less: found by trying a step]")
@training_options
@loading_options
@overwrite_option
@verbosity_options
def heal(model: str, output: Path, **given: Any) -> None:
    """Train a converted MODEL to do what its original does, without labels, and write it to the folder OUTPUT.

    Never makes it worse on the rows that it holds back. If interrupted, the same command goes on.
    """
    set_up_logging(-1 if given["quiet"] else given["verbose"])
    with failures(INTERRUPTED_TRAINING):
        from ..checkpoints.heal import heal_checkpoint, healing_step  # slow to import
        from ..training.work import WorkOptions

        options = HealOptions(
            given["trainable"],
            given["samples"],
            given["max_length"],
            run_of(given, _RUN, learning_rate=given["learning_rate"], steps=given["steps"]),
        )
        with bars(shown=not given["quiet"]) as progress:
            healing = heal_checkpoint(
                model,
                output,
                heal_source(given["data"], given["text_column"], given["subset"], given["split"]),
                options=options,
                teacher=given["teacher"],
                reading=loading_of(given),
                writing=WorkOptions(given["overwrite"], given["restart"], command_line()),
                on_step=progress.step,
            )
    if given["as_json"]:
        click.echo(json.dumps(healing.report, indent=2))
    elif not given["quiet"]:
        show_step(healing_step(healing), output)
