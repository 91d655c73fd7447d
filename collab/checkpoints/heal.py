"""Healing a model in a folder into another folder: what `collab heal` does."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from ..data.prepare import Unlabelled
from ..errors import CheckpointError, ConfigurationError
from ..evaluation.compare import check_tokenizers
from ..io.history import Step, read_report, table
from ..io.load import Loaded, LoadOptions, load
from ..io.staging import check_output
from ..io.write import republish
from ..training.heal import Healing, heal
from ..training.options import HealOptions, OnStep
from ..training.work import WorkOptions, finish, is_main_process, processes, work_folder


@contextlib.contextmanager
def in_float32(model: PreTrainedModel) -> Iterator[None]:
    """Has a model in float32 for a while, because the steps of training are too small for half precision."""
    dtype = model.dtype
    model.float()
    try:
        yield
    finally:
        model.to(dtype)  # type: ignore[arg-type]


def heal_checkpoint(
    model: str,
    output: str | Path,
    data: Unlabelled = "synthetic",
    *,
    options: HealOptions | None = None,
    teacher: str | None = None,
    reading: LoadOptions | None = None,
    writing: WorkOptions | None = None,
    on_step: OnStep | None = None,
) -> Healing:
    """Heals a converted model in a folder, or on the Hub, into a folder that appears whole or not at all.

    Unfinished work is in a folder beside it, called `OUTPUT.training`; the same call goes on from there.

    Args:
        model: a folder or a Hub id.
        output: the folder to write.
        data: see `heal`.
        options: how.
        teacher: the original; None for the one that the model's report names.
        reading: how to read the model.
        writing: how to treat the output and unfinished work.
        on_step: called after every step.

    Raises:
        CollabError: of the kind that `load`, `heal` and `republish` raise.
    """
    options, reading = options or HealOptions(), reading or LoadOptions()
    writing = writing or WorkOptions()
    output = Path(output).expanduser()
    loaded = load(model, reading)
    check_output(output, loaded.source.folder, writing.overwrite)
    original = _teacher(loaded, teacher)
    check_tokenizers(loaded.processor, original.processor)
    work = work_folder(output)
    with in_float32(loaded.model):
        healing = heal(
            loaded.model,
            original.model,
            data,
            tokenizer=loaded.processor,
            options=options,
            work=work,
            restart=writing.restart,
            on_step=on_step,
        )
    healing.report.update(command=writing.command, teacher=original.source.name)
    if is_main_process():
        republish(
            loaded.model,
            output,
            loaded.source.folder,
            healing_step(healing),
            unused=loaded.unused,
            overwrite=writing.overwrite,
            trust_remote_code=reading.trust_remote_code,
        )
    finish(work)
    return healing


def heal_conversion(
    model: PreTrainedModel,
    teacher: PreTrainedModel,
    processor: Any,
    data: Unlabelled,
    options: HealOptions,
    output: Path,
    *,
    restart: bool = False,
    on_step: OnStep | None = None,
) -> Step:
    """Heals what was just converted, before it is written to `output`; returns the step for its report and card."""
    if processes() > 1:
        raise ConfigurationError("Convert in one process, and heal what comes out in several: collab heal.")
    with in_float32(model):
        healing = heal(
            model,
            teacher,
            data,
            tokenizer=processor,
            options=options,
            work=work_folder(output),
            restart=restart,
            on_step=on_step,
        )
    return healing_step(healing)


def healing_step(healing: Healing) -> Step:
    """Healing as a section of the card."""
    report = healing.report
    names = [name for name in report["before"] if name in report["after"] and name != "rows"]
    rows = [[name.replace("_", " "), *(f"{report[when][name]:.4f}" for when in ("before", "after"))] for name in names]
    text = (
        f"{report['parameters']:,} parameters ({report['settings']['trainable']}) were trained for {report['steps']} "
        f"steps to match the original's hidden states after every layer{', and its logits' if 'kl' in names else ''}, "
        f"without labels, on `{report['data']['source']}` ({report['data']['rows']} rows). "
    )
    if not healing.improved:
        text += "It did not get better on the rows held back, so it was left as it was. "
    text += f"On {report['data']['held_back']} rows held back, against the original:\n\n"
    return Step("Healing", text + table(["", "before", "after"], rows), report)


def _teacher(loaded: Loaded, name: str | None) -> Loaded:
    """The model to learn from."""
    if name is not None:
        return load(name)
    report = read_report(loaded.source.folder)
    if any(step.get("step") == "finetune" for step in report.get("history", [])):
        raise ConfigurationError(
            f"{loaded.source.name} was fine-tuned after its conversion, so its original knows another task. Name a "
            "model to learn from with --teacher."
        )
    if not report.get("source"):
        raise ConfigurationError(f"{loaded.source.name} has no report that names its original. Name it with --teacher.")
    if report.get("revision") is None and not Path(report["source"]).expanduser().is_dir():
        raise CheckpointError(
            f"The original, which the report calls {report['source']}, is not a folder here. Name it with --teacher."
        )
    try:
        return load(report["source"], LoadOptions(report.get("revision")))
    except CheckpointError as error:
        raise CheckpointError(
            f"The original, which the report names, could not be loaded; name it with --teacher. {error}"
        ) from error
