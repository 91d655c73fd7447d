"""Converts a model in a folder into another folder (`collab convert`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..calibration.options import CalibrationRequest
from ..conversion.convert import convert as convert_model
from ..conversion.convert import is_lossless, require_convertible
from ..data.source import DataSource
from ..errors import ConfigurationError
from ..heads.reconversion import read_pruned
from ..io.load import load_native
from ..io.options import LoadOptions, Progress, SaveOptions, no_progress
from ..io.read import resolve_source
from ..io.report import Conversion, ConversionReport
from ..io.staging import check_output
from ..io.write import save
from ..models.weights import check_cast
from ..planning.config import ConversionConfig
from ..training.options import HealRequest
from .calibrate import calibrate
from .heal import heal_conversion, work_of
from .vocabulary import fewer_tokens, what_stays


def convert(
    model: str,
    output: str | Path,
    config: ConversionConfig,
    *,
    calibration: CalibrationRequest | None = None,
    heal: HealRequest | None = None,
    load_options: LoadOptions | None = None,
    save_options: SaveOptions | None = None,
    dtype: torch.dtype | None = None,
    keep_tokens: str | DataSource | None = None,
    progress: Progress = no_progress,
) -> ConversionReport:
    """Converts a checkpoint into a folder that appears whole or not at all.

    Args:
        model: folder or Hub id.
        output: folder to write.
        config: settings of the conversion.
        calibration: data to calibrate on; by default that of `heal`, or else random words, and none at full rank.
        heal: data to heal the result on; None for no training. Unfinished healing is kept in `OUTPUT.training`, and
            the same call resumes it.
        load_options: how to read the original.
        save_options: how to write the result.
        dtype: dtype of the exported weights; None keeps the checkpoint's. The solver's is `SolverOptions.precision`.
        keep_tokens: text whose tokens stay in the vocabulary, others are left out: a file (of a table, the text
            in every column), another source, or ``"auto"`` for the text of calibration or healing. The result is
            exact on text of the same tokens; other words are split into shorter tokens or become unknown. None to
            keep all tokens.
        progress: called after every batch of the calibration, every layer and every step of healing.

    Returns:
        The report, as written to `collab_report.json`.

    Raises:
        CollabError: as raised by `collab.load`, `collab.calibrate`, `collab.convert` and `collab.save`. No output is
            left behind.
    """
    load_options, save_options = load_options or LoadOptions(), save_options or SaveOptions()
    output = Path(output).expanduser()
    progress("loading the model", 0, None)
    source = resolve_source(model, load_options.revision)
    check_output(output, source.folder, save_options.overwrite)
    pruned = read_pruned(source)
    checkpoint = load_native(source, load_options, seed=config.seed) if pruned is None else pruned.checkpoint
    kept = None
    if keep_tokens is not None:
        if pruned is not None:
            raise ConfigurationError("keep_tokens (--keep-tokens) applies to originals; this model was pruned.")
        progress("leaving out tokens", 0, None)
        checkpoint, kept = fewer_tokens(checkpoint, keep_tokens, calibration, heal)
    _widen(checkpoint.model, dtype)
    require_convertible(checkpoint.model)
    request = _calibration_request(checkpoint.model, config, calibration, heal)
    moments, notes = calibrate(checkpoint, request, config, progress=progress)
    conversion = convert_model(checkpoint.model, config, calibration=moments, inplace=heal is None, progress=progress)
    if pruned is not None:
        conversion = pruned.prune_again(conversion)
    with work_of(heal, output):
        steps = []
        if heal is not None:
            restart = save_options.restart
            steps = [heal_conversion(conversion.model, checkpoint, heal, output, restart=restart, progress=progress)]
        if dtype is not None:
            _cast_model(conversion.model, dtype)
            checkpoint = replace(checkpoint, unused=_cast(checkpoint.unused, dtype))
        notes = (*checkpoint.notes, *notes, *conversion.report.notes)
        report = replace(conversion.report, source=model, revision=source.revision, notes=notes)
        if kept is not None:
            report = replace(report, keep_tokens=kept.to_dict(), notes=(*notes, what_stays(kept)))
        progress("writing and checking", 0, None)
        return save(Conversion(conversion.model, report), output, checkpoint, save_options, steps)


def _calibration_request(
    model: PreTrainedModel,
    config: ConversionConfig,
    calibration: CalibrationRequest | None,
    heal: HealRequest | None,
) -> CalibrationRequest:
    """What to calibrate on; by default nothing at full rank, and otherwise the data of healing, if there is any."""
    request = calibration or CalibrationRequest()
    lossless = is_lossless(model, config)  # or an error, before any work
    if request.source != "default":
        return request
    if lossless:
        return replace(request, source="none")
    if heal is not None and heal.source != "synthetic":
        return replace(request, source=heal.source)
    return request


def _widen(model: PreTrainedModel, dtype: torch.dtype | None) -> None:
    """Casts a model to the dtype of the export if that is more precise, so the factors keep that precision."""
    if dtype is not None and torch.finfo(dtype).eps < torch.finfo(model.dtype).eps:
        _cast_model(model, dtype)


def _cast_model(model: PreTrainedModel, dtype: torch.dtype) -> None:
    """Casts a model in place.

    Raises:
        WeightsError: if a weight does not fit the dtype; the model is unchanged.
    """
    _cast(model.state_dict(), dtype)
    model.to(dtype)  # type: ignore[arg-type]


def _cast(state: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """Casts weights.

    Raises:
        WeightsError: if a tensor does not fit the dtype.
    """
    cast = {name: tensor.to(dtype) if tensor.is_floating_point() else tensor for name, tensor in state.items()}
    check_cast(state, cast)
    return cast
