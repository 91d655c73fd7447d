"""`collab prune`."""

from __future__ import annotations

from pathlib import Path

import click

from ..data.source import DataSource, NamedSource
from ..data.task import Task
from ..heads.options import PruneOptions, ScoreOptions, parse_keep
from ..training.options import HealOptions, HealRequest, RunOptions, Trainable
from .command import Parsed, command, gathers, grouped, only_with
from .options.data import Unlabelled, data_options
from .options.heads import head_rows_options, scoring_options
from .options.measuring import speed_option
from .options.model import model_in, model_out
from .options.training import heal_options, trainable_option
from .session import Session

_TRAINABLE: Trainable = "attention"


def _scoring(score: str, ablation_samples: int, normalize: bool) -> ScoreOptions:
    return ScoreOptions((score,), ablation_samples, normalize)


def _heal(
    heal: tuple[str, ...],
    unlabelled: Unlabelled,
    heal_steps: int,
    heal_trainable: Trainable,
    max_length: int | None,
    seed: int,
) -> HealRequest | None:
    if not heal:
        return None
    run = RunOptions(steps=heal_steps, seed=seed)
    return HealRequest(unlabelled.sources(heal), HealOptions(heal_trainable, max_length=max_length, run=run))


@command(
    "collab prune ./model smaller --heads 0.4 --data sentences.txt --heal sentences.txt",
    "collab prune ./classifier smaller --per-layer 6 --data dev.tsv --task classification --steps 4",
    'collab prune ./model smaller --keep "0:1,2;3:"',
    summary="Remove the heads that matter least.",
)
@gathers("options", PruneOptions)
@click.option("--heads", type=float, help="Remove this part of all heads, those that matter least.")
@click.option("--per-layer", type=int, help="Keep so many heads in every layer, those that matter most.")
@click.option(
    "--keep",
    type=Parsed("heads", parse_keep),
    help="Keep these heads of these layers, and all of the others: 0:1,2;3: is heads 1 and 2 of layer 0 and none of 3.",
)
@gathers("heal", _heal)
@data_options(("heal",))
@head_rows_options
@gathers("scoring", _scoring)
@grouped("Options", click.option("--score", default="gradient", help="What heads are ranked by; see collab heads."))
@scoring_options
@click.option("--steps", default=1, help="Remove them in so many steps, scoring anew.")
@heal_options(HealOptions().run.steps)
@grouped("Healing", only_with("heal", trainable_option(_TRAINABLE, "--heal-trainable")))
@model_in
@speed_option
@model_out
def prune(
    output: Path, data: NamedSource | None, task: Task | None, heal: HealRequest | None, session: Session
) -> None:
    """Remove heads of MODEL, original or converted, for good, and write what is left to the folder OUTPUT.

    Give one of --heads, --per-layer and --keep; the first two need --data.
    """
    session.begin(trains=heal is not None)
    from ..checkpoints.prune import prune as prune_checkpoint
    from ..steps.pruning import Pruning
    from .outcome import finish, to_heal

    pruned = session.call(prune_checkpoint)
    # Columns that were found beside the labels are not said, and healing would ask for them.
    named = data if task is None or (isinstance(data, DataSource) and data.columns) else None
    following = to_heal(pruned, output, named, "--trainable", "attention") if heal is None else None
    finish(session, pruned, Pruning, following)
