"""Compresses a model in a folder into another folder (`collab compress`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..calibration.calibrate import Calibration
from ..calibration.options import CalibrationRequest
from ..compression.compress import (
    FRACTIONS,
    CompressedLayer,
    Compression,
    CompressionPlan,
    CompressionReport,
    plan_compression,
    require_compressible,
)
from ..compression.compress import compress as compress_model
from ..compression.options import CompressionConfig
from ..conversion.vocabulary import KeptTokens
from ..data.source import DataSource
from ..errors import CalibrationError
from ..io.history import Step, table
from ..io.load import Checkpoint, load_native
from ..io.options import LoadOptions, Progress, SaveOptions, no_progress
from ..io.read import resolve_source
from ..io.report import Conversion, Count
from ..io.staging import check_output
from ..io.write import save
from ..models.layers import parameters
from ..training.options import HealRequest
from .calibrate import calibrate
from .heal import heal_conversion, work_of
from .vocabulary import fewer_tokens, what_stays


@dataclass(frozen=True)
class CompressedCheckpoint:
    """A compressed model as written.

    Attributes:
        steps: compression, and healing if there was any: sections of the card, with their records for the report.
    """

    steps: tuple[Step, ...]

    @property
    def record(self) -> dict[str, Any]:
        """The record of the compression, with those of later steps as ``history``."""
        return self.steps[0].record | {"history": [step.record for step in self.steps[1:]]}


def compress(
    model: str,
    output: str | Path,
    config: CompressionConfig,
    *,
    calibration: CalibrationRequest | None = None,
    heal: HealRequest | None = None,
    load_options: LoadOptions | None = None,
    save_options: SaveOptions | None = None,
    keep_tokens: str | DataSource | None = None,
    progress: Progress = no_progress,
) -> CompressedCheckpoint:
    """Compresses a checkpoint into a folder that appears whole or not at all.

    Args:
        model: folder or Hub id of an original.
        output: folder to write.
        config: settings of the compression; `healed` follows from `heal`.
        calibration: rows to calibrate on; by default random words.
        heal: data to heal the compressed model on; None for no training. Unfinished healing is kept in
            `OUTPUT.training`, and the same call resumes it.
        load_options: how to read the original.
        save_options: how to write the result.
        keep_tokens: as in `collab.checkpoints.convert`. What is left out counts towards a budget of parameters.
        progress: called during calibration and compression, and after every step of healing.

    Returns:
        What was done, as written to `collab_report.json`.

    Raises:
        CollabError: as raised by `collab.load`, `collab.calibrate`, `collab.compress`, `collab.heal` and `collab.save`.
            No output is left behind.
    """
    save_options = save_options or SaveOptions()
    output = Path(output).expanduser()
    progress("loading the model", 0, None)
    checkpoint = _load(model, load_options)
    check_output(output, checkpoint.source.folder, save_options.overwrite)
    kept = None
    if keep_tokens is not None:
        progress("leaving out tokens", 0, None)
        checkpoint, kept = fewer_tokens(checkpoint, keep_tokens, calibration, heal)
    moments = _calibrate(checkpoint, calibration, progress)
    config = replace(config, healed=heal is not None)
    compression = compress_model(checkpoint.model, _of_rest(config, kept), moments, progress=progress)
    report = compression.report
    if kept is not None:
        whole = Count(kept.parameters.before, report.parameters.after)
        notes = (*report.notes, what_stays(kept))
        report = replace(report, parameters=whole, settings=config.to_dict(), notes=notes)
    record = {"step": "compress", **report.to_dict(), "command": save_options.command}
    steps = [Step("Compression", _section(record, report.layers), record)]
    with work_of(heal, output):
        if heal is not None:
            restart = save_options.restart
            steps.append(
                heal_conversion(compression.model, checkpoint, heal, output, restart=restart, progress=progress)
            )
        progress("writing and checking", 0, None)
        save(
            _conversion(compression, report, checkpoint, kept),
            output,
            checkpoint,
            save_options,
            steps,
            card="compressed",
        )
    return CompressedCheckpoint(tuple(steps))


def plan_whole(
    model: str,
    config: CompressionConfig,
    *,
    fractions: Sequence[float] = FRACTIONS,
    calibration: CalibrationRequest | None = None,
    load_options: LoadOptions | None = None,
    progress: Progress = no_progress,
) -> CompressionPlan:
    """Predicts what compressing a checkpoint would lose; see `collab.plan_compression`.

    Args:
        model: folder or Hub id of an original.
        config: settings of the compression.
        fractions: the budgets.
        calibration: rows to calibrate on; by default random words.
        load_options: how to read the original.
        progress: called while the model runs.

    Raises:
        CollabError: as raised by `collab.load`, `collab.calibrate` and `collab.plan_compression`.
    """
    progress("loading the model", 0, None)
    checkpoint = _load(model, load_options)
    moments = _calibrate(checkpoint, calibration, progress)
    return plan_compression(checkpoint.model, config, moments, fractions=fractions, progress=progress)


def _conversion(
    compression: Compression, report: CompressionReport, checkpoint: Checkpoint, kept: KeptTokens | None
) -> Conversion:
    """The compressed model with the report that every converted model has."""
    before, after = parameters(checkpoint.model), parameters(compression.model)
    query_key, attention, whole = (Count(before[name], after[name]) for name in ("query_key", "attention", "model"))
    whole_report = replace(
        compression.conversion.report,
        layers=(),
        query_key=query_key,
        attention=attention,
        model=whole,
        settings=report.settings,
        calibration=report.calibration,
        agreement=report.agreement,
        seconds=report.seconds,
        source=checkpoint.source.name,
        revision=checkpoint.source.revision,
        keep_tokens=None if kept is None else kept.to_dict(),
        notes=(*checkpoint.notes, *report.notes),
    )
    return replace(compression.conversion, report=whole_report)


def _of_rest(config: CompressionConfig, kept: KeptTokens | None) -> CompressionConfig:
    """The settings with a budget of parameters as a fraction of what is left without the tokens that are left out."""
    if kept is None or config.params is None:
        return config
    return replace(config, params=min(1.0, config.params / kept.parameters.ratio))


def _load(model: str, options: LoadOptions | None) -> Checkpoint:
    options = options or LoadOptions()
    checkpoint = load_native(resolve_source(model, options.revision), options)
    require_compressible(checkpoint.model)
    return checkpoint


def _calibrate(checkpoint: Checkpoint, request: CalibrationRequest | None, progress: Progress) -> Calibration:
    """Moments and rows; raises a CalibrationError if there are none."""
    calibration, _ = calibrate(checkpoint, request or CalibrationRequest(), progress=progress)
    if calibration is None:
        raise CalibrationError(
            "Compression needs rows that the model runs on: give text, images or other data with --calibration "
            "(calibration=)."
        )
    return calibration


def _section(record: dict[str, Any], layers: Sequence[CompressedLayer]) -> str:
    """Compression as a section of the card."""
    rows = [[f"`{name}`", *widths] for name, *widths in (layer.cells() for layer in layers)]
    counts = [
        [name, f"{record[key]['before']:,}", f"{record[key]['after']:,}", f"{record[key]['ratio']:.3f}"]
        for name, key in (
            (f"FLOPs of the layers, {record['settings']['length']} tokens", "flops"),
            ("parameters of the model", "parameters"),
        )
    ]
    text = (
        "Narrowed in closed form, without training, on "
        f"`{record['calibration']['source']}` ({record['calibration'].get('rows', '?')} rows).\n\n"
        f"{table(['', 'before', 'after', 'after / before'], counts)}\n\n"
        f"{table(list(CompressedLayer.HEADINGS), rows)}\n"
    )
    if record["speedup"] is not None:
        text += f"\n{record['speedup']:.2f} times as fast as the original, measured when it was made.\n"
    if record["agreement"]:
        measured = {name: value for name, value in record["agreement"].items() if name != "rows"}
        values = [[name.replace("_", " "), f"{value:.4f}"] for name, value in measured.items()]
        text += (
            f"\nBefore any healing, against the original on {record['agreement']['rows']} held-out rows:\n\n"
            f"{table(['', 'agreement'], values)}"
        )
    return text
