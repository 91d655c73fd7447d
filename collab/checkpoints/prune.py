"""Pruning a model in a folder into another folder: what `collab prune` does."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..conversion.convert import convert
from ..data.prepare import Unlabelled
from ..data.task import Task
from ..errors import ConfigurationError
from ..heads.pruning import prune_by
from ..heads.removal import LOSSLESS
from ..heads.rows import head_rows
from ..heads.scores import OnDone
from ..heads.selection import PruneOptions
from ..io.history import Step, table
from ..io.load import Loaded, LoadOptions, load
from ..io.read import Checkpoint
from ..io.report import Count
from ..io.staging import check_output
from ..io.write import ExportOptions, export, republish
from ..modeling.collab_model import CollaborativeMixin
from ..models.layers import parameters
from ..training.options import HealRequest, OnStep
from ..training.work import work_folder


def prune_checkpoint(
    model: str,
    output: str | Path,
    options: PruneOptions,
    *,
    data: Unlabelled | None = None,
    task: Task | None = None,
    label_column: str | None = None,
    heal: HealRequest | None = None,
    reading: LoadOptions | None = None,
    overwrite: bool = False,
    command: str | None = None,
    on_done: OnDone = lambda *_: None,
    on_step: OnStep | None = None,
) -> dict[str, Any]:
    """Prunes heads of a model in a folder, or on the Hub, into a folder that appears whole or not at all.

    Args:
        model: a folder or a Hub id, of an original or a converted model.
        output: the folder to write; a collaborative model in any case.
        options: what to prune.
        data: rows to score heads on; not needed where they are named.
        task: whose labels to score by; None to score by the model's own answers.
        label_column: of the labels; found by its usual names if None.
        heal: what to heal the pruned model on, with the unpruned one as its teacher; None for no training. Unfinished
            healing is kept in `OUTPUT.training`, and the same call goes on from there.
        reading: how to read the model.
        overwrite: replace a model that collab wrote to `output`.
        command: the command line, for report and card.
        on_done: called as scoring goes on.
        on_step: called after every step of healing.

    Returns:
        What was done; see `prune_by`.

    Raises:
        CollabError: of the kind that `load`, `prune_by`, `heal` and `export` raise.
    """
    reading = reading or LoadOptions()
    output = Path(output).expanduser()
    loaded = load_to_score(model, task, reading)
    check_output(output, loaded.source.folder, overwrite)
    teacher = loaded.model
    conversion = None
    if not isinstance(loaded.model, CollaborativeMixin):
        conversion = convert(loaded.model, LOSSLESS)
        loaded = replace(loaded, model=conversion.model)
    rows = None
    if options.needs_scores:
        if data is None:
            raise ConfigurationError("Say with --data what to score heads on, or name the heads with --keep.")
        rows = head_rows(loaded, data, task, label_column=label_column, samples=options.samples, seed=options.seed)
    pruned, record = prune_by(loaded, rows, options, on_done)
    record = {"step": "prune", **record, "command": command}
    record["parameters"]["before"] = parameters(teacher)
    steps = [pruning_step(record)]
    if heal is not None:
        from .heal import heal_conversion  # which needs accelerate, and is slow to import

        steps.append(
            heal_conversion(
                pruned,
                teacher,
                loaded.processor,
                heal.source,
                heal.options,
                output,
                restart=heal.restart,
                on_step=on_step,
            )
        )
    if conversion is None:
        republish(
            pruned,
            output,
            loaded.source.folder,
            *steps,
            unused=loaded.unused,
            overwrite=overwrite,
            trust_remote_code=reading.trust_remote_code,
        )
    else:
        counts = record["parameters"]
        counts = {name: Count(counts["before"][name], counts["after"][name]) for name in counts["before"]}
        report = replace(conversion.report, **counts, source=model, revision=loaded.source.revision, command=command)
        export(
            replace(conversion, model=pruned, report=report),
            output,
            Checkpoint(loaded.source, teacher, loaded.unused),
            ExportOptions(overwrite=overwrite),
            reading.trust_remote_code,
            steps,
        )
    if heal is not None:
        shutil.rmtree(work_folder(output), ignore_errors=True)
    return record | {"history": [step.record for step in steps[1:]]}


def load_to_score(model: str, task: Task | None, reading: LoadOptions) -> Loaded:
    """A model whose heads are to be scored, with the head of the task, if there is one."""
    auto_class = task.auto_class if task is not None and task.head is not None else None
    loaded = load(model, reading, auto_class=auto_class)
    if task is not None and task.head is not None:
        loaded.require_head(task.kind)
    return loaded


def pruning_step(record: dict[str, Any]) -> Step:
    """Pruning as a section of the card."""
    how = "The heads to keep were named."
    if record["score"]:
        how = (
            f"The heads of least {record['score'].replace('_', ' ')} went, in {record['steps']} "
            f"step{'s' if record['steps'] > 1 else ''}, scored on `{record['data']['source']}` "
            f"({record['data']['rows']} rows, with{'' if 'task' in record['data'] else 'out'} labels)."
        )
    counts = record["parameters"]
    rows = [
        [name.replace("query_key", "query and key"), *(f"{counts[when][name]:,}" for when in ("before", "after"))]
        for name in counts["before"]
    ]
    kept = "\n".join(f"- `{name}`: {', '.join(map(str, heads)) or 'none'}" for name, heads in record["heads"].items())
    text = (
        f"{record['heads_after']} of {record['heads_before']} heads are left. {how}\n\n"
        f"{table(['parameters of', 'before', 'after'], rows)}\n\n"
        f"Heads left, by their numbers in the original:\n\n{kept}"
    )
    return Step("Pruning", text, record)
