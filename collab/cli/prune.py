"""`collab prune`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import click

from ..data.task import task_named
from ..training.options import HealOptions, HealRequest, Trainable
from .options import heal_source, loading_of, loading_options, overwrite_option, scoring_options, verbosity_options
from .running import INTERRUPTED_TRAINING, bars, command_line, failures, set_up_logging
from .tables import show_step


@click.command(
    epilog="""\b
Examples:
  collab prune ./model smaller --heads 0.4 --data sentences.txt --heal sentences.txt
  collab prune ./classifier smaller --per-layer 6 --data dev.tsv --task classification --steps 4
  collab prune ./model smaller --keep "0:1,2;3:" """
)
@click.argument("model")
@click.argument("output", type=click.Path(path_type=Path))
@click.option("--heads", "fraction", type=float, help="Remove this part of all heads, those that matter least.")
@click.option("--per-layer", type=int, help="Keep so many heads in every layer, those that matter most.")
@click.option("--keep", help="Keep these heads of these layers: 0:1,2;3: is heads 1 and 2 of layer 0 and none of 3.")
@click.option("--data", help="Rows to score heads on: a file, a folder of images, a data set on the Hub, or synthetic.")
@scoring_options
@click.option("--score", default="gradient", show_default=True, help="What heads are ranked by; see collab heads.")
@click.option("--steps", type=int, default=1, show_default=True, help="Remove them in so many steps, scoring anew.")
@click.option("--heal", metavar="SOURCE", help="Then heal it, on a file, a data set or synthetic, without labels.")
@click.option("--heal-steps", type=int, help=f"[default: {HealOptions().run.steps}]")
@click.option(
    "--heal-trainable",
    type=click.Choice(get_args(Trainable)),
    default="attention",
    show_default=True,
    help="What healing trains; see collab heal.",
)
@click.option("--restart", is_flag=True, help="Forget an unfinished healing of OUTPUT instead of going on with it.")
@loading_options
@overwrite_option
@verbosity_options
def prune(model: str, output: Path, **given: Any) -> None:
    """Remove heads of MODEL, original or converted, for good, and write what is left to the folder OUTPUT."""
    set_up_logging(-1 if given["quiet"] else given["verbose"])
    with failures(INTERRUPTED_TRAINING if given["heal"] else "Interrupted. Nothing was written."):
        from ..checkpoints.prune import prune_checkpoint, pruning_step  # slow to import
        from ..heads.selection import PruneOptions, parse_keep

        options = PruneOptions(
            keep=None if given["keep"] is None else parse_keep(given["keep"]),
            **{
                name: given[name]
                for name in ("fraction", "per_layer", "score", "normalize", "steps", "samples", "seed")
            },
        )
        columns, subset, split = given["text_column"], given["subset"], given["split"]
        heal = None
        if given["heal"]:
            base = HealOptions(trainable=given["heal_trainable"])
            run = replace(base.run, steps=given["heal_steps"] or base.run.steps, seed=given["seed"])
            source = heal_source(given["heal"], columns, subset, split)
            heal = HealRequest(source, replace(base, run=run), given["restart"])
        with bars(shown=not given["quiet"]) as progress:
            record = prune_checkpoint(
                model,
                output,
                options,
                data=None if given["data"] is None else heal_source(given["data"], columns, subset, split),
                task=task_named(given["task"]) if given["task"] else None,
                label_column=given["label_column"],
                heal=heal,
                reading=loading_of(given),
                overwrite=given["overwrite"],
                command=command_line(),
                on_done=progress.part,
                on_step=progress.step,
            )
    if given["as_json"]:
        click.echo(json.dumps(record, indent=2))
    elif not given["quiet"]:
        show_step(pruning_step(record))
        for step in record["history"]:
            click.echo(
                f"Healed in {step['steps']} steps: loss {step['before']['loss']:.4f} → {step['after']['loss']:.4f}"
            )
        click.echo(f"Wrote {output}")
