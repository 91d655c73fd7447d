"""`collab prune`."""

from __future__ import annotations

from pathlib import Path

import click

from ..data.source import NamedSource
from ..data.task import Task
from ..heads.options import PruneOptions, ScoreOptions, parse_keep
from ..io.options import LoadOptions, SaveOptions
from ..training.options import HealOptions, HealRequest, Trainable
from .command import Parsed, command, gathers
from .options.data import data_options, unlabelled
from .options.heads import head_rows_options, scoring_options
from .options.measuring import speed_option
from .options.model import model_in, model_out
from .options.training import heal_options, heal_request, trainable_option
from .session import INTERRUPTED_TRAINING, Session


def _scoring(score: str, ablation_samples: int, normalize: bool) -> ScoreOptions:
    return ScoreOptions((score,), ablation_samples, normalize)


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


@command(
    "collab prune ./model smaller --heads 0.4 --data sentences.txt --heal sentences.txt",
    "collab prune ./classifier smaller --per-layer 6 --data dev.tsv --task classification --steps 4",
    'collab prune ./model smaller --keep "0:1,2;3:"',
)
@gathers("options", PruneOptions)
@click.option("--heads", type=float, help="Remove this part of all heads, those that matter least.")
@click.option("--per-layer", type=int, help="Keep so many heads in every layer, those that matter most.")
@click.option(
    "--keep",
    type=Parsed("heads", parse_keep),
    help="Keep these heads of these layers: 0:1,2;3: is heads 1 and 2 of layer 0 and none of 3.",
)
@data_options()
@head_rows_options
@gathers("scoring", _scoring)
@click.option("--score", default="gradient", help="What heads are ranked by; see collab heads.")
@scoring_options
@click.option("--steps", default=1, help="Remove them in so many steps, scoring anew.")
@gathers("heal", _heal)
@heal_options(HealOptions().run.steps)
@trainable_option("attention", "--heal-trainable")
@model_in
@speed_option
@model_out
def prune(
    model: str,
    output: Path,
    *,
    options: PruneOptions,
    data: NamedSource | None,
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
