"""`collab heal`."""

from __future__ import annotations

from pathlib import Path

from ..data.source import Mixture, NamedSource
from ..training.options import HealOptions
from .command import command, gathers
from .options.data import max_length_option, mixed_data_options, samples_option
from .options.model import model_in, model_out
from .options.training import (
    beams_option,
    fragments_option,
    joined_option,
    learning_rate_option,
    optimizer_option,
    restart_option,
    teacher_option,
    trainable_option,
    training_options,
    training_steps_option,
)
from .session import Session

_RUN = HealOptions().run


@command(
    "collab heal converted healed --data sentences.txt",
    "collab heal converted healed --data pairs.csv --text-column 0 --text-column 1 --steps 1000",
    summary="Train a converted or compressed model to give its original's outputs, without labels.",
)
@mixed_data_options("synthetic")
@teacher_option("the original that the model's report names")
@gathers("options", HealOptions)
@trainable_option(HealOptions.trainable)
@samples_option(HealOptions.samples)
@fragments_option(HealOptions.fragments)
@joined_option(HealOptions.joined)
@beams_option()
@optimizer_option()
@training_steps_option(_RUN.steps)
@learning_rate_option(None, "found by trying a step: at most 1e-3, or 1.5e-3 for layers with muon")
@training_options(_RUN)
@max_length_option
@restart_option
@model_in
@model_out
def heal(output: Path, data: NamedSource | Mixture, session: Session) -> None:
    """Train a converted or compressed MODEL to do what its original does, without labels.

    The result, in the folder OUTPUT, is never worse on the rows that are held out. If interrupted, the same command
    goes on.
    """
    session.begin(trains=True, divides=True)
    from ..checkpoints.heal import heal as heal_checkpoint
    from ..steps.training import Healing
    from .outcome import finish, to_serve

    healed = session.call(heal_checkpoint)
    finish(session, healed, Healing, to_serve(healed, output, data))
