"""Heals a converted model in a folder into another folder (`collab heal`).

Training code is imported where it is called, because transformers' `Trainer` is slow to import.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from transformers import PreTrainedModel

from ..data.prepare import Unlabelled
from ..errors import CheckpointError, ConfigurationError
from ..evaluation.compare import check_tokenizers
from ..io.checkpoint import Checkpoint
from ..io.load import load
from ..io.options import LoadOptions, TransformOptions
from ..modeling.collab_model import CollaborativeMixin
from ..models.sharded import sharding
from ..models.states import in_float32, on_its_device
from ..processes import processes
from ..progress import Progress
from ..steps.training import Healing
from ..training.options import HealOptions, HealRequest
from .transform import Run, Verb, transform

if TYPE_CHECKING:
    from ..compression.trials import Healer

_TRIAL = 60
"""Steps of a trial, by Adam. After so many, candidates rank as after 300 (benchmarks/recovery.py)."""

_TRIAL_ROWS = 32
"""Rows of its steps, or a few more if the processes cannot divide them."""

_TRIAL_HELD_OUT = 64
"""Rows that its learning rate and its last step are judged by."""

_WORTH = 10
"""Healing on as many times the rows of a trial is worth one."""


def heal(
    model: str,
    output: str | Path,
    data: Unlabelled = "synthetic",
    *,
    options: HealOptions | None = None,
    teacher: str | None = None,
    **more: Unpack[TransformOptions],
) -> Checkpoint:
    """Heals a converted model in a folder or on the Hub into a folder that appears whole or not at all.

    Unfinished work is kept in `OUTPUT.training`, and the same call resumes it.

    Args:
        model: folder or Hub id.
        output: folder to write.
        data: rows to train on; see `collab.heal`.
        options: training settings.
        teacher: folder or Hub id of the original; None for the one that the model's report names.
        **more: see [`TransformOptions`][collab.TransformOptions].

    Returns:
        The healed model as written; `Checkpoint.step` gives its `Healing`.

    Raises:
        CollabError: as raised by `collab.load`, `collab.heal` and `collab.save`.
    """

    def verb(checkpoint: Checkpoint, run: Run) -> Checkpoint:
        original = _teacher(checkpoint, teacher)
        check_tokenizers(checkpoint.processor, original.processor)
        return _healed_in(run, checkpoint, original, data, options)

    return transform(model, output, [verb], trains=True, **more)


def healed(request: HealRequest) -> Verb:
    """Healing as a verb after another: the teacher is the checkpoint that the model was made from in this run.

    Args:
        request: data and training settings.

    Raises:
        ConfigurationError: if the processes cannot divide a step among them.
    """
    request.options.run.check_processes()

    def verb(checkpoint: Checkpoint, run: Run) -> Checkpoint:
        assert checkpoint.original is not None
        return _healed_in(run, checkpoint, checkpoint.original, request.source, request.options)

    return verb


def trial(request: HealRequest, original: Checkpoint, run: Run) -> Healer | None:
    """Healing for a short time, to compare candidates before one of them is healed.

    Args:
        request: data and settings of the healing to come.
        original: the teacher.
        run: what the command is writing.

    Returns:
        What heals a model in place; None if the healing to come is too short to be worth it.
    """
    to_come = request.options.run
    if to_come.steps is not None and to_come.steps * to_come.batch_size < _WORTH * _TRIAL * _TRIAL_ROWS:
        return None
    work = cache(run.scratch)  # once for all trials, which share what the original writes
    settings = replace(
        to_come,
        learning_rate=None,
        steps=_TRIAL,
        batch_size=-(-_TRIAL_ROWS // processes()) * processes(),
        gradient_accumulation_steps=1,
        evaluations=1,
    )

    def progress(what: str, done: int, total: int | None) -> None:
        run.progress("trying numbers of dropped layers", done, total)

    def heal_for_a_short_time(model: PreTrainedModel) -> None:
        nonlocal settings
        options = replace(request.options, held_out=_TRIAL_HELD_OUT, optimizer="adamw", run=settings)
        candidate = replace(original, model=model)
        report = _healed(candidate, original, request.source, options, work(), True, progress).step(Healing)
        assert report is not None
        settings = replace(settings, learning_rate=report.settings["run"]["learning_rate"])  # the same for all

    return heal_for_a_short_time


def _healed_in(
    run: Run, checkpoint: Checkpoint, teacher: Checkpoint, data: Unlabelled, options: HealOptions | None
) -> Checkpoint:
    """Healing whose unfinished work is that of a command."""
    return _healed(checkpoint, teacher, data, options, run.work, run.save_options.restart, run.progress)


def _healed(
    checkpoint: Checkpoint,
    teacher: Checkpoint,
    data: Unlabelled,
    options: HealOptions | None,
    work: Path,
    restart: bool,
    progress: Progress,
) -> Checkpoint:
    from ..training.heal import heal as heal_model

    shares = options is not None and sharding(options.run.shard)  # then only the shards are cast
    with contextlib.ExitStack() as casting:
        for model in () if shares else (checkpoint.model, teacher.model):
            casting.enter_context(on_its_device(model))
            casting.enter_context(in_float32(model))  # autocast does not mix with half precision
        return heal_model(
            checkpoint,
            teacher,
            data,
            options=options,
            work=work,
            restart=restart,
            progress=progress,
        )


def _teacher(loaded: Checkpoint, name: str | None) -> Checkpoint:
    """The original of a converted model."""
    if name is not None:
        return load(name)
    history = loaded.history
    if "finetune" in history.kinds:
        raise ConfigurationError(
            f"{loaded.name} was fine-tuned after its conversion, so its original was trained for another task. "
            "Name a teacher with --teacher (teacher=)."
        )
    if not isinstance(loaded.model, CollaborativeMixin) and not history:
        raise ConfigurationError(
            f"{loaded.name} is not converted, so there is nothing to heal. Convert and heal it with collab "
            "convert --heal (heal=), or name the model to match with --teacher (teacher=)."
        )
    if not history.source:
        raise ConfigurationError(
            f"{loaded.name} has no report that names its original. Name it with --teacher (teacher=)."
        )
    if history.revision is None and not os.path.isdir(os.path.expanduser(history.source)):
        raise CheckpointError(
            f"The original, which the report calls {history.source}, is not a folder here. Name it with --teacher "
            "(teacher=)."
        )
    if history.revision is None and loaded.folder == Path(history.source).expanduser().resolve():
        raise CheckpointError(
            f"The report calls {history.source} the original, but that is the folder of this model. Name the original "
            "with --teacher (teacher=)."
        )
    try:
        return load(history.source, LoadOptions(history.revision))
    except CheckpointError as error:
        raise CheckpointError(
            f"The original, which the report names, could not be loaded; name it with --teacher (teacher=). {error}"
        ) from error
