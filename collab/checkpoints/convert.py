"""Converting a model in a folder into another folder: what `collab convert` does."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..calibration.options import CalibrationRequest
from ..conversion.convert import convert as convert_model
from ..conversion.convert import is_lossless, require_convertible
from ..errors import WeightsError
from ..heads.reconversion import read_pruned
from ..io.load import load_native
from ..io.options import LoadOptions, Progress, SaveOptions, no_progress
from ..io.read import resolve_source
from ..io.report import Conversion, ConversionReport
from ..io.staging import check_output
from ..io.write import save
from ..planning.config import ConversionConfig
from ..training.options import HealRequest
from ..training.work import work_folder
from .calibrate import calibrate
from .heal import heal_conversion


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
    progress: Progress = no_progress,
) -> ConversionReport:
    """Converts a checkpoint into a folder that appears whole or not at all.

    Args:
        model: a folder or a Hub id.
        output: the folder to write.
        config: what to do.
        calibration: what to calibrate on; by default random vocabulary. At full rank there is nothing to calibrate.
        heal: what to heal the result on; None for no training. Unfinished healing is kept beside the output, in
            `OUTPUT.training`, and the same call goes on from there.
        load_options: how to read the original.
        save_options: how to write the result.
        dtype: of the exported weights; None keeps the checkpoint's. The solve has its own (`SolverOptions.precision`).
        progress: called after every batch of the calibration, every layer and every step of healing.

    Returns:
        The report, as written to `collab_report.json`.

    Raises:
        CollabError: of the kind that `load_native`, `collab.calibrate`, `collab.convert` and `collab.save` raise. No
            output is left behind then.
    """
    load_options, save_options = load_options or LoadOptions(), save_options or SaveOptions()
    request = calibration or CalibrationRequest()
    output = Path(output).expanduser()
    progress("loading the model", 0, None)
    source = resolve_source(model, load_options.revision)
    check_output(output, source.folder, save_options.overwrite)
    pruned = read_pruned(source)
    checkpoint = load_native(source, load_options, seed=config.seed) if pruned is None else pruned.checkpoint
    _widen(checkpoint.model, dtype)
    require_convertible(checkpoint.model)
    if is_lossless(checkpoint.model, config) and request.source == "default":
        request = replace(request, source="none")
    elif heal is not None and request.source == "default" and heal.source != "synthetic":
        request = replace(request, source=heal.source)
    moments, notes = calibrate(checkpoint, request, config, progress=progress)
    conversion = convert_model(checkpoint.model, config, calibration=moments, inplace=heal is None, progress=progress)
    if pruned is not None:
        conversion = pruned.prune_again(conversion)
    steps = []
    if heal is not None:
        steps.append(
            heal_conversion(conversion.model, checkpoint, heal, output, restart=save_options.restart, progress=progress)
        )
    if dtype is not None:
        _cast_model(conversion.model, dtype)
        checkpoint = replace(checkpoint, unused=_cast(checkpoint.unused, dtype))
    report = replace(
        conversion.report,
        source=model,
        revision=source.revision,
        notes=(*checkpoint.notes, *notes, *conversion.report.notes),
    )
    progress("writing and checking", 0, None)
    report = save(Conversion(conversion.model, report), output, checkpoint, save_options, steps)
    if heal is not None:
        shutil.rmtree(work_folder(output), ignore_errors=True)
    return report


def _widen(model: PreTrainedModel, dtype: torch.dtype | None) -> None:
    """A model in the dtype of the export if that is the wider one, so that the factors are not rounded to its own."""
    if dtype is not None and torch.finfo(dtype).eps < torch.finfo(model.dtype).eps:
        _cast_model(model, dtype)


def _cast_model(model: PreTrainedModel, dtype: torch.dtype) -> None:
    """A model in another dtype, in place.

    Raises:
        WeightsError: naming the weight, if one does not fit; the model is as it was then.
    """
    _cast(model.state_dict(), dtype)
    model.to(dtype)  # type: ignore[arg-type]


def _cast(state: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """Weights in another dtype.

    Raises:
        WeightsError: naming the tensor, if one does not fit.
    """
    cast = {name: tensor.to(dtype) if tensor.is_floating_point() else tensor for name, tensor in state.items()}
    for name, tensor in cast.items():
        if tensor.is_floating_point() and not tensor.isfinite().all() and state[name].isfinite().all():
            raise WeightsError(
                f"{name} does not fit {str(dtype).removeprefix('torch.')}: its largest entry is "
                f"{float(state[name].abs().max()):.3g}. Use bfloat16 or float32."
            )
    return cast
