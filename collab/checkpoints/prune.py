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
from ..heads.options import PruneOptions, RowOptions
from ..heads.pruning import Pruning, prune_by
from ..heads.removal import LOSSLESS
from ..heads.rows import head_rows
from ..io.history import Step, table
from ..io.load import Checkpoint, load
from ..io.options import LoadOptions, Progress, SaveOptions, no_progress
from ..io.report import Count
from ..io.staging import check_output
from ..io.write import save, save_changed
from ..modeling.collab_model import CollaborativeMixin
from ..models.layers import parameters
from ..training.options import HealRequest
from ..training.work import work_folder
from .heal import heal_conversion


def prune(
    model: str,
    output: str | Path,
    options: PruneOptions,
    *,
    data: Unlabelled | None = None,
    task: Task | None = None,
    label_column: str | None = None,
    heal: HealRequest | None = None,
    load_options: LoadOptions | None = None,
    save_options: SaveOptions | None = None,
    progress: Progress = no_progress,
) -> Pruning:
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
        load_options: how to read the model.
        save_options: how to write the result, and whether to go on with unfinished healing.
        progress: called as scoring goes on, and after every step of healing.

    Returns:
        What was done; its `model` is what was written.

    Raises:
        CollabError: of the kind that `collab.load`, `collab.score_heads`, `collab.heal` and `collab.save` raise.
    """
    load_options, save_options = load_options or LoadOptions(), save_options or SaveOptions()
    output = Path(output).expanduser()
    progress("loading the model", 0, None)
    original = load_to_score(model, task, load_options)
    check_output(output, original.source.folder, save_options.overwrite)
    current, conversion = original, None
    if not isinstance(original.model, CollaborativeMixin):
        conversion = convert(original.model, LOSSLESS)
        current = replace(original, model=conversion.model)
    rows = None
    if options.needs_scores:
        if data is None:
            raise ConfigurationError("Say with --data what to score heads on, or name the heads with --keep.")
        rows = head_rows(current, data, task, RowOptions(label_column, options.samples, seed=options.seed))
    pruning = prune_by(current, rows, options, progress)
    record = {"step": "prune", **pruning.record, "command": save_options.command}
    record["parameters"]["before"] = parameters(original.model)
    steps = [pruning_step(record)]
    if heal is not None:
        step = heal_conversion(pruning.model, original, heal, output, restart=save_options.restart, progress=progress)
        steps.append(step)
        record["history"] = [step.record]
    progress("writing and checking", 0, None)
    if conversion is None:
        save_changed(pruning.model, output, original, steps, save_options)
    else:
        counts = record["parameters"]
        counts = {name: Count(counts["before"][name], counts["after"][name]) for name in counts["before"]}
        report = replace(conversion.report, **counts, source=model, revision=original.source.revision)
        save(replace(conversion, model=pruning.model, report=report), output, original, save_options, steps)
    if heal is not None:
        shutil.rmtree(work_folder(output), ignore_errors=True)
    return Pruning(pruning.model, record)


def load_to_score(model: str, task: Task | None, options: LoadOptions) -> Checkpoint:
    """A model whose heads are to be scored, with the head of the task, if there is one."""
    auto_class = task.auto_class if task is not None and task.head is not None else None
    loaded = load(model, options, auto_class=auto_class)
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
