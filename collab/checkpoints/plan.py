"""Predicts costs and losses of converting or compressing a model in a folder (`collab plan`)."""

from __future__ import annotations

from collections.abc import Sequence

from ..calibration.options import CalibrationRequest
from ..compression.compressions import require_compressible
from ..compression.options import CompressionConfig
from ..compression.plan import plan as plan_model
from ..conversion.convert import require_convertible
from ..io.load import load_native
from ..io.options import LoadOptions
from ..io.read import resolve_source
from ..planning.config import ConversionConfig
from ..planning.plan import Plan
from ..progress import Progress, no_progress
from .calibrate import calibrate


def plan(
    model: str,
    config: ConversionConfig | CompressionConfig | None = None,
    *,
    fractions: Sequence[float] | None = None,
    calibration: CalibrationRequest | None = None,
    load_options: LoadOptions | None = None,
    progress: Progress = no_progress,
) -> Plan:
    """Predicts what several budgets would cost and lose; see `collab.plan`.

    Args:
        model: folder or Hub id.
        config: what is planned, as in `collab.plan`.
        fractions: the budgets, as in `collab.plan`.
        calibration: data to calibrate on; by default random words.
        load_options: how to read the model.
        progress: called after every batch of the calibration, after every layer, and while a compression is measured.

    Raises:
        CollabError: as raised by `collab.load`, `collab.calibrate` and `collab.plan`.
    """
    load_options = load_options or LoadOptions()
    progress("loading the model", 0, None)
    checkpoint = load_native(resolve_source(model, load_options.revision), load_options)
    require = require_compressible if isinstance(config, CompressionConfig) else require_convertible
    require(checkpoint.model)
    moments, _ = calibrate(checkpoint, calibration or CalibrationRequest(), progress=progress)
    return plan_model(checkpoint, moments, config, fractions=fractions, progress=progress)
