"""Prunes heads of a model in a folder into another folder (`collab prune`)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from ..conversion.convert import convert_losslessly
from ..data.prepare import Unlabelled
from ..data.task import Task
from ..errors import ConfigurationError
from ..heads.options import PruneOptions, RowOptions
from ..heads.pruning import Pruning, prune_by
from ..heads.rows import HeadRows, head_rows
from ..io.history import Step, table
from ..io.load import Checkpoint, load
from ..io.options import LoadOptions, Progress, SaveOptions, no_progress
from ..io.report import ConversionReport, Count
from ..io.staging import check_output
from ..io.write import save, save_changed
from ..modeling.collab_model import CollaborativeMixin
from ..models.layers import parameters
from ..training.options import HealRequest
from .heal import heal_conversion, work_of


def prune(
    model: str,
    output: str | Path,
    options: PruneOptions,
    *,
    data: Unlabelled | None = None,
    task: Task | None = None,
    heal: HealRequest | None = None,
    load_options: LoadOptions | None = None,
    save_options: SaveOptions | None = None,
    progress: Progress = no_progress,
) -> Pruning:
    """Prunes heads of a model in a folder or on the Hub into a folder that appears whole or not at all.

    Args:
        model: folder or Hub id of an original or a converted model.
        output: folder to write; it always holds a collaborative model.
        options: which heads to prune.
        data: rows to score heads on; not needed with `PruneOptions.keep`.
        task: task of the labels to score by; None for the model's own answers.
        heal: data to heal the pruned model on, with the unpruned model as teacher; None for no training. Unfinished
            healing is kept in `OUTPUT.training`, and the same call resumes it.
        load_options: how to read the model.
        save_options: how to write the result, and whether to resume unfinished healing.
        progress: called during scoring, and after every step of healing.

    Returns:
        The pruned model as written, and the record.

    Raises:
        CollabError: as raised by `collab.load`, `collab.score_heads`, `collab.heal` and `collab.save`.
    """
    load_options, save_options = load_options or LoadOptions(), save_options or SaveOptions()
    output = Path(output).expanduser()
    progress("loading the model", 0, None)
    original = load_to_score(model, task, load_options)
    check_output(output, original.source.folder, save_options.overwrite)
    current, conversion = original, None
    if not isinstance(original.model, CollaborativeMixin):
        conversion = convert_losslessly(original.model)
        current = replace(original, model=conversion.model)
    pruning = prune_by(current, _rows(current, data, task, options), options, progress)
    record = {"step": "prune", **pruning.record, "command": save_options.command}
    record["parameters"]["before"] = parameters(original.model)
    steps = [pruning_step(record)]
    with work_of(heal, output):
        if heal is not None:
            step = heal_conversion(
                pruning.model, original, heal, output, restart=save_options.restart, progress=progress
            )
            steps.append(step)
            record["history"] = [step.record]
        progress("writing and checking", 0, None)
        if conversion is None:
            save_changed(pruning.model, output, original, steps, save_options)
        else:
            report = replace(_counted(conversion.report, record), source=model, revision=original.source.revision)
            save(replace(conversion, model=pruning.model, report=report), output, original, save_options, steps)
    return Pruning(pruning.model, record)


def _rows(loaded: Checkpoint, data: Unlabelled | None, task: Task | None, options: PruneOptions) -> HeadRows | None:
    """Rows to score heads on; None if the heads to keep are given."""
    if not options.needs_scores:
        return None
    if data is None:
        raise ConfigurationError(
            "Scoring heads needs data: give --data (data=), or name the heads to keep with --keep (keep=)."
        )
    return head_rows(loaded, data, task, RowOptions(options.label_column, options.samples, seed=options.seed))


def _counted(report: ConversionReport, record: dict[str, Any]) -> ConversionReport:
    """A report with the parameters before and after pruning."""
    before, after = record["parameters"]["before"], record["parameters"]["after"]
    query_key, attention, whole = (Count(before[name], after[name]) for name in ("query_key", "attention", "model"))
    return replace(report, query_key=query_key, attention=attention, model=whole)


def load_to_score(model: str, task: Task | None, options: LoadOptions) -> Checkpoint:
    """Loads a model to score its heads, with the task's head if there is a task."""
    auto_class = task.auto_class if task is not None and task.head is not None else None
    loaded = load(model, options, auto_class=auto_class)
    if task is not None and task.head is not None:
        loaded.require_head(task.kind)
    return loaded


def pruning_step(record: dict[str, Any]) -> Step:
    """Pruning as a section of the card."""
    how = "The heads to keep were given."
    if record["score"]:
        how = (
            f"The heads of least {record['score'].replace('_', ' ')} were removed in {record['steps']} "
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
