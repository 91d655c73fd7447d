"""Calibration in the order of the layers, each with the layers before it already converted."""

from __future__ import annotations

import copy
from dataclasses import replace

import torch
from transformers import PreTrainedModel

from ..calibration.calibrate import Calibration, Data, calibrate
from ..calibration.options import CalibrationOptions
from ..errors import CalibrationError
from ..io.checkpoint import Checkpoint
from ..planning.choice import choose
from ..planning.config import ConversionConfig
from ..processes import from_main
from ..progress import Progress, no_progress
from ..reparametrization.model import LayerProblems
from ..reparametrization.moments import LayerMoments
from .convert import install, require_convertible


def calibrate_in_order(
    checkpoint: Checkpoint | PreTrainedModel,
    config: ConversionConfig,
    data: Data = "synthetic",
    *,
    options: CalibrationOptions | None = None,
    progress: Progress = no_progress,
) -> Calibration:
    """Calibrates every layer on a model whose earlier layers are already converted.

    A layer is then solved for the inputs that it will have after conversion, errors of earlier layers included. Takes
    as many passes over the data as there are layers. With a budget other than `rank`, the ranks here follow from the
    original's moments, and `collab.convert` chooses them again from the result, so a few may differ. Not the default;
    what it gains is in docs/benchmarks/calibration.md.

    Args:
        checkpoint: a native model, which is not changed, with its tokenizer or image processor.
        config: settings of the conversion that the result is for.
        data: as in `calibrate`, but not a callable.
        options: calibration settings.
        progress: progress callback, called after every layer.

    Returns:
        Moments of the layers' inputs in the partly converted model, and held-out moments of the original.

    Raises:
        CalibrationError: as `calibrate`.
    """
    if callable(data):
        raise CalibrationError(
            "Calibration in order runs the data once for each layer, which a callable does not allow."
        )
    options = options or CalibrationOptions()
    checkpoint = Checkpoint.of(checkpoint)
    model = checkpoint.model
    first = calibrate(checkpoint, data, options=options)
    require_convertible(model)
    device = config.solver_options.resolve_device(model.device)
    choice = from_main(lambda: choose(model, config, first))  # they go on with the same partly converted model
    partly = copy.deepcopy(model)
    moments: dict[str, LayerMoments] = {}
    names = list(first.moments)
    progress("calibrating in order", 0, len(names))
    for done, (name, rank) in enumerate(zip(names, choice.ranks, strict=True), 1):
        seen = calibrate(partly, first, options=options) if moments else first
        moments[name] = seen.moments[name]
        problem = LayerProblems(partly, seen.moments, device)[name]
        with torch.no_grad():
            solution = problem.solve(choice.form, rank, config.content, config.solver_options, config.seed)
        install(partly, name, solution.factors)
        progress("calibrating in order", done, len(names))
    return replace(first, moments=moments, summary=first.summary | {"in_order": True})
