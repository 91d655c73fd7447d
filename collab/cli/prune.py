"""`collab prune`."""

from __future__ import annotations

from pathlib import Path

import click

from ..data.task import Task
from ..heads.options import PruneOptions
from ..io.options import LoadOptions, SaveOptions
from ..training.options import HealOptions, HealRequest, Trainable
from .options import (
    KeepType,
    Unlabelled,
    data_options,
    gathers,
    heal_options,
    heal_request,
    label_column_option,
    loading_options,
    model_argument,
    normalize_option,
    output_argument,
    samples_option,
    saving_options,
    seed_option,
    speed_option,
    task_option,
    trainable_option,
    unlabelled,
)
from .running import INTERRUPTED_TRAINING, Command, Session


def _heal(
    heal: str | None,
    heal_steps: int,
    heal_trainable: Trainable,
    text_column: tuple[str, ...],
    subset: str | None,
    split: str,
    seed: int,
) -> HealRequest | None:
    if heal is None:
        return None
    return heal_request(unlabelled(heal, text_column, subset, split), HealOptions(heal_trainable), heal_steps, seed)


@click.command(
    cls=Command,
    epilog="""\b
Examples:
  collab prune ./model smaller --heads 0.4 --data sentences.txt --heal sentences.txt
  collab prune ./classifier smaller --per-layer 6 --data dev.tsv --task classification --steps 4
  collab prune ./model smaller --keep "0:1,2;3:" """,
)
@model_argument
@output_argument
@gathers("options", PruneOptions)
@click.option("--heads", type=float, help="Remove this part of all heads, those that matter least.")
@click.option("--per-layer", type=int, help="Keep so many heads in every layer, those that matter most.")
@click.option(
    "--keep",
    type=KeepType(),
    help="Keep these heads of these layers: 0:1,2;3: is heads 1 and 2 of layer 0 and none of 3.",
)
@data_options()
@task_option("none: score by how far the model's own answers move, without labels")
@label_column_option
@normalize_option
@samples_option(PruneOptions.samples)
@seed_option
@click.option("--score", default="gradient", show_default=True, help="What heads are ranked by; see collab heads.")
@click.option("--steps", type=int, default=1, show_default=True, help="Remove them in so many steps, scoring anew.")
@gathers("heal", _heal)
@heal_options(HealOptions().run.steps)
@trainable_option("attention", "--heal-trainable")
@loading_options
@speed_option
@saving_options
def prune(
    model: str,
    output: Path,
    *,
    options: PruneOptions,
    data: Unlabelled | None,
    task: Task | None,
    heal: HealRequest | None,
    load_options: LoadOptions,
    save_options: SaveOptions,
    measure_speed: bool,
    session: Session,
) -> None:
    """Remove heads of MODEL, original or converted, for good, and write what is left to the folder OUTPUT."""
    if heal is not None:
        session.interrupted = INTERRUPTED_TRAINING
    session.begin(model)
    from ..checkpoints.prune import prune as prune_checkpoint
    from ..steps.pruning import Pruning
    from .outcome import finish

    pruned = prune_checkpoint(
        model,
        output,
        options,
        data=data,
        task=task,
        heal=heal,
        load_options=load_options,
        save_options=save_options,
        measure_speed=measure_speed,
        progress=session.progress,
    )
    following = [f"collab heal {output} healed --data sentences.txt --trainable attention"] if heal is None else []
    finish(session, pruned, Pruning, output=output, following=following)
