"""From a checkpoint to an exported collaborative model, in one call: what `collab convert` does."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..calibration.calibrate import OnBatch
from ..conversion.convert import convert, is_lossless, require_convertible
from ..errors import WeightsError
from ..heads.reconversion import read_pruned
from ..io.load import LoadOptions, load_processor
from ..io.read import load_checkpoint, resolve_source
from ..io.report import Conversion, ConversionReport, LayerReport
from ..io.staging import check_output
from ..io.write import ExportOptions, export
from ..planning.config import ConversionConfig
from ..training.options import HealRequest, OnStep
from ..training.work import work_folder
from .calibrate import CalibrationRequest, calibrate_checkpoint


def _widen(model: PreTrainedModel, dtype: torch.dtype | None) -> None:
    """A model in the dtype of the export if that is the wider one, so that the factors are not rounded to its own."""
    if dtype is not None and torch.finfo(dtype).eps < torch.finfo(model.dtype).eps:
        _cast_model(model, dtype)


def convert_checkpoint(
    model: str,
    output: str | Path,
    config: ConversionConfig,
    *,
    calibration: CalibrationRequest | None = None,
    heal: HealRequest | None = None,
    reading: LoadOptions | None = None,
    writing: ExportOptions | None = None,
    dtype: torch.dtype | None = None,
    command: str | None = None,
    on_batch: OnBatch | None = None,
    on_layer: Callable[[LayerReport, int], None] | None = None,
    on_step: OnStep | None = None,
) -> ConversionReport:
    """Converts a checkpoint into a folder that appears whole or not at all.

    Args:
        model: a folder or a Hub id.
        output: the folder to write.
        config: what to do.
        calibration: what to calibrate on; by default random vocabulary. At full rank there is nothing to calibrate.
        heal: what to heal the result on; None for no training. Unfinished healing is kept beside the output, in
            `OUTPUT.training`, and the same call goes on from there.
        reading: how to read the original.
        writing: how to write the result.
        dtype: of the exported weights; None keeps the checkpoint's. The solve has its own (`SolverOptions.precision`).
        command: the command line, for the report and the model card.
        on_batch: called after every batch of the calibration, with their number and the number in all.
        on_layer: called as soon as a layer is solved, with its report and the number of layers in all.
        on_step: called after every step of healing.

    Returns:
        The report, as written to `collab_report.json`.

    Raises:
        CollabError: of the kind that `load_checkpoint`, `calibrate`, `convert` and `export` raise. No output is left
            behind then.
    """
    reading = reading or LoadOptions()
    writing = writing or ExportOptions()
    request = calibration or CalibrationRequest()
    output = Path(output).expanduser()
    source = resolve_source(model, reading.revision)
    check_output(output, source.folder, writing.overwrite)
    pruned = read_pruned(source)
    checkpoint = load_checkpoint(source, seed=config.seed) if pruned is None else pruned.checkpoint
    _widen(checkpoint.model, dtype)
    require_convertible(checkpoint.model)
    if is_lossless(checkpoint.model, config) and request.source == "default":
        request = replace(request, source="none")
    elif heal is not None and request.source == "default" and heal.source != "synthetic":
        request = replace(request, source=heal.source)
    found, notes = calibrate_checkpoint(
        checkpoint, request, config, trust_remote_code=reading.trust_remote_code, on_batch=on_batch
    )
    conversion = convert(checkpoint.model, config, calibration=found, inplace=heal is None, on_layer=on_layer)
    if pruned is not None:
        conversion = pruned.prune_again(conversion)
    steps = []
    if heal is not None:
        from .heal import heal_conversion  # which needs accelerate, and is slow to import

        processor = load_processor(checkpoint.source, checkpoint.model, reading.trust_remote_code)
        steps.append(
            heal_conversion(
                conversion.model,
                checkpoint.model,
                processor,
                heal.source,
                heal.options,
                output,
                restart=heal.restart,
                on_step=on_step,
            )
        )
    if dtype is not None:
        _cast_model(conversion.model, dtype)
        checkpoint = replace(checkpoint, unused=_cast(checkpoint.unused, dtype))
    report = replace(
        conversion.report,
        source=model,
        revision=source.revision,
        command=command,
        notes=(*checkpoint.notes, *notes, *conversion.report.notes),
    )
    report = export(Conversion(conversion.model, report), output, checkpoint, writing, reading.trust_remote_code, steps)
    if heal is not None:
        shutil.rmtree(work_folder(output), ignore_errors=True)
    return report


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
