"""Calibrating the model of a checkpoint, with the tokenizer or image processor beside it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from ..calibration.calibrate import Calibration, CalibrationOptions, OnBatch, calibrate
from ..conversion.in_order import calibrate_in_order
from ..data.source import DataSource
from ..errors import ConfigurationError
from ..io.load import load_processor
from ..io.read import Checkpoint
from ..planning.config import ConversionConfig


@dataclass(frozen=True)
class CalibrationRequest:
    """What to calibrate on.

    Attributes:
        source: ``synthetic`` (random vocabulary), ``none`` (convert by the weights alone), a `DataSource`, or
            ``default``: synthetic for models that take text, none for others.
        options: how much.
        cache: a file that keeps the moments.
        in_order: calibrate every layer with the layers before it converted (`collab.calibrate_in_order`).

    Raises:
        ConfigurationError: if `cache` and `in_order` are asked for together.
    """

    source: Literal["default", "synthetic", "none"] | DataSource = "default"
    options: CalibrationOptions = field(default_factory=CalibrationOptions)
    cache: Path | None = None
    in_order: bool = False

    def __post_init__(self) -> None:
        if self.in_order and self.cache is not None:
            raise ConfigurationError("Moments in order belong to one conversion, so they are not cached.")


def calibrate_checkpoint(
    checkpoint: Checkpoint,
    request: CalibrationRequest,
    config: ConversionConfig | None = None,
    *,
    trust_remote_code: bool = False,
    on_batch: OnBatch | None = None,
) -> tuple[Calibration | None, tuple[str, ...]]:
    """Calibrates a checkpoint's model with the tokenizer or image processor beside it.

    Args:
        checkpoint: what was read.
        request: what to calibrate on.
        config: of the conversion, for calibration in order.
        trust_remote_code: let transformers run a tokenizer's code that comes with the checkpoint.
        on_batch: called after every batch.

    Returns:
        The calibration, or None where there is none, and notes for the user.

    Raises:
        CalibrationError: as `collab.calibrate`.
    """
    if request.source == "none":
        return None, ()
    model, source = checkpoint.model, request.source
    if source == "default":
        if model.main_input_name != "input_ids" or getattr(model.config, "add_cross_attention", False):
            return None, (
                "Converted by the weights alone: for this model there is no calibration without data. Give some with "
                "--calibration for a more faithful result.",
            )
        source = "synthetic"
    processor = load_processor(checkpoint.source, model, trust_remote_code)
    if request.in_order and config is not None:
        return calibrate_in_order(model, config, source, tokenizer=processor, options=request.options), ()
    calibration = calibrate(
        model, source, tokenizer=processor, options=request.options, cache=request.cache, on_batch=on_batch
    )
    return calibration, ()
