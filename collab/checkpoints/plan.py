"""Predicting what converting a checkpoint would cost: what `collab plan` does."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..calibration.calibrate import OnBatch
from ..conversion.convert import require_convertible
from ..decomposition import SolverOptions
from ..io.load import LoadOptions
from ..io.read import load_checkpoint, resolve_source
from ..planning.plan import FRACTIONS, Plan, make_plan
from ..reparametrization.layer import Content
from .calibrate import CalibrationRequest, calibrate_checkpoint


def plan_checkpoint(
    model: str,
    *,
    calibration: CalibrationRequest | None = None,
    reading: LoadOptions | None = None,
    fractions: Sequence[float] = FRACTIONS,
    content: Content = "exact",
    solver: SolverOptions | None = None,
    on_batch: OnBatch | None = None,
    on_layer: Callable[[str, int], None] | None = None,
) -> Plan:
    """Predicts errors and costs of converting a checkpoint; see `collab.planning.make_plan`."""
    reading = reading or LoadOptions()
    checkpoint = load_checkpoint(resolve_source(model, reading.revision))
    require_convertible(checkpoint.model)
    found, _ = calibrate_checkpoint(
        checkpoint, calibration or CalibrationRequest(), trust_remote_code=reading.trust_remote_code, on_batch=on_batch
    )
    return make_plan(checkpoint.model, found, fractions=fractions, content=content, solver=solver, on_layer=on_layer)
