"""Heals a converted model in a folder into another folder (`collab heal`).

Training code is imported where it is called, because transformers' `Trainer` is slow to import.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from transformers import PreTrainedModel

from ..data.prepare import Unlabelled
from ..errors import CheckpointError, ConfigurationError
from ..evaluation.compare import check_tokenizers
from ..io.history import Step, read_report, short, table
from ..io.load import Checkpoint, load
from ..io.options import LoadOptions, Progress, SaveOptions, no_progress
from ..io.staging import check_output
from ..io.write import save_changed
from ..modeling.collab_model import CollaborativeMixin
from ..models.states import in_float32
from ..training.options import HealOptions, HealRequest
from ..training.work import alone_in, finish, is_main_process, processes, work_folder

if TYPE_CHECKING:
    from ..training.heal import Healing


def heal(
    model: str,
    output: str | Path,
    data: Unlabelled = "synthetic",
    *,
    options: HealOptions | None = None,
    teacher: str | None = None,
    load_options: LoadOptions | None = None,
    save_options: SaveOptions | None = None,
    progress: Progress = no_progress,
) -> Healing:
    """Heals a converted model in a folder or on the Hub into a folder that appears whole or not at all.

    Unfinished work is kept in `OUTPUT.training`, and the same call resumes it.

    Args:
        model: folder or Hub id.
        output: folder to write.
        data: rows to train on; see `collab.heal`.
        options: training settings.
        teacher: folder or Hub id of the original; None for the one that the model's report names.
        load_options: how to read the model.
        save_options: how to write the result, and whether to resume unfinished work.
        progress: called after every step.

    Raises:
        CollabError: as raised by `collab.load`, `collab.heal` and `collab.save`.
    """
    from ..training.heal import heal as heal_model

    options, load_options = options or HealOptions(), load_options or LoadOptions()
    save_options = save_options or SaveOptions()
    output = Path(output).expanduser()
    progress("loading the model", 0, None)
    checkpoint = load(model, load_options)
    check_output(output, checkpoint.source.folder, save_options.overwrite)
    original = _teacher(checkpoint, teacher)
    check_tokenizers(checkpoint.processor, original.processor)
    work = work_folder(output)
    with alone_in(work):
        with in_float32(checkpoint.model):
            healing = heal_model(
                checkpoint.model,
                original.model,
                data,
                tokenizer=checkpoint.processor,
                options=options,
                work=work,
                restart=save_options.restart,
                progress=progress,
            )
        healing.record.update(command=save_options.command, teacher=original.source.name)
        if is_main_process():
            progress("writing and checking", 0, None)
            save_changed(checkpoint.model, output, checkpoint, [healing_step(healing)], save_options)
        finish(work)
    return healing


def heal_conversion(
    model: PreTrainedModel,
    original: Checkpoint,
    request: HealRequest,
    output: Path,
    *,
    restart: bool = False,
    teacher: PreTrainedModel | None = None,
    progress: Progress = no_progress,
) -> Step:
    """Heals a model that was just converted or pruned, before it is written to `output`.

    Args:
        model: the model to train.
        original: the checkpoint that it was made from.
        request: data and training settings.
        output: folder that the model will be written to.
        restart: discard unfinished healing of the same output.
        teacher: the model to match; None for that of `original`.
        progress: called after every step.

    Returns:
        The step for its report and card.
    """
    from ..training.heal import heal as heal_model

    if processes() > 1:
        raise ConfigurationError(
            "Conversion and pruning run in one process. Heal the result in several with collab heal."
        )
    with in_float32(model):
        healing = heal_model(
            model,
            teacher or original.model,
            request.source,
            tokenizer=original.processor,
            options=request.options,
            work=work_folder(output),
            restart=restart,
            progress=progress,
        )
    return healing_step(healing)


@contextlib.contextmanager
def work_of(heal: HealRequest | None, output: Path) -> Iterator[None]:
    """Alone in the work folder of healing within another command; the folder is removed once that has written `output`.

    Args:
        heal: None for no healing, and no folder.
        output: folder that the command writes.

    Raises:
        TrainingError: as `alone_in`.
    """
    if heal is None:
        yield
        return
    work = work_folder(output)
    with alone_in(work):
        yield
        shutil.rmtree(work, ignore_errors=True)


def healing_step(healing: Healing) -> Step:
    """Healing as a section of the card."""
    record = healing.record
    names = [name for name in record["before"] if name in record["after"] and name != "rows"]
    rows = [[name.replace("_", " "), *(short(record[when][name]) for when in ("before", "after"))] for name in names]
    text = (
        f"{record['parameters']:,} parameters ({record['settings']['trainable']}) were trained for {record['steps']} "
        f"steps to match the original's hidden states after every layer{', and its logits' if 'kl' in names else ''}, "
        f"without labels, on `{record['data']['source']}` ({record['data']['rows']} rows). "
    )
    if not healing.improved:
        text += "The held-out rows showed no improvement, so the model was left unchanged. "
    text += f"On {record['data']['held_out']} held-out rows, against the original:\n\n"
    return Step("Healing", text + table(["", "before", "after"], rows), record)


def _teacher(loaded: Checkpoint, name: str | None) -> Checkpoint:
    """The original of a converted model."""
    if name is not None:
        return load(name)
    report = read_report(loaded.source.folder)
    if any(step.get("step") == "finetune" for step in report.get("history", [])):
        raise ConfigurationError(
            f"{loaded.source.name} was fine-tuned after its conversion, so its original was trained for another task. "
            "Name a teacher with --teacher (teacher=)."
        )
    if not isinstance(loaded.model, CollaborativeMixin) and not report:
        raise ConfigurationError(
            f"{loaded.source.name} is not converted, so there is nothing to heal. Convert and heal it with collab "
            "convert --heal (heal=), or name the model to match with --teacher (teacher=)."
        )
    if not report.get("source"):
        raise ConfigurationError(
            f"{loaded.source.name} has no report that names its original. Name it with --teacher (teacher=)."
        )
    if report.get("revision") is None and not os.path.isdir(os.path.expanduser(report["source"])):
        raise CheckpointError(
            f"The original, which the report calls {report['source']}, is not a folder here. Name it with --teacher "
            "(teacher=)."
        )
    try:
        return load(report["source"], LoadOptions(report.get("revision")))
    except CheckpointError as error:
        raise CheckpointError(
            f"The original, which the report names, could not be loaded; name it with --teacher (teacher=). {error}"
        ) from error
