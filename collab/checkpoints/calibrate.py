"""Calibrates the model of a checkpoint as a command asks."""

from __future__ import annotations

from pathlib import Path

from ..calibration.calibrate import Calibration
from ..calibration.calibrate import calibrate as calibrate_model
from ..calibration.options import CalibrationRequest
from ..conversion.in_order import calibrate_in_order
from ..io.checkpoint import Checkpoint
from ..planning.config import ConversionConfig
from ..progress import Progress, no_progress


def calibrate(
    checkpoint: Checkpoint,
    request: CalibrationRequest,
    config: ConversionConfig | None = None,
    *,
    scratch: Path | None = None,
    progress: Progress = no_progress,
) -> tuple[Calibration | None, tuple[str, ...]]:
    """Calibrates the model of a checkpoint.

    Args:
        checkpoint: the model with its tokenizer or image processor.
        request: data and settings of the calibration.
        config: settings of the conversion, for calibration in order.
        scratch: see `collab.calibrate`.
        progress: called after every batch.

    Returns:
        The calibration (None for none), and notes for the user.

    Raises:
        CalibrationError: as `collab.calibrate`.
    """
    model, source, options = checkpoint.model, request.source, request.options
    if source == "none":
        return None, ()
    if source == "default":
        if model.main_input_name != "input_ids" or getattr(model.config, "add_cross_attention", False):
            return None, (
                "Converted by the weights alone, because this model cannot be calibrated without data. Give some with "
                "--calibration (calibration=) for a more faithful result.",
            )
        source = "synthetic"
    if request.in_order and config is not None:
        return calibrate_in_order(checkpoint, config, source, options=options, progress=progress), ()
    cache = request.cache
    return calibrate_model(checkpoint, source, options=options, cache=cache, scratch=scratch, progress=progress), ()
