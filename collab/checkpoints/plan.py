"""Predicts errors and costs of converting a model in a folder (`collab plan`)."""

from __future__ import annotations

from collections.abc import Sequence

from ..calibration.options import CalibrationRequest
from ..conversion.convert import require_convertible
from ..decomposition import SolverOptions
from ..decomposition.options import Content
from ..io.load import load_native
from ..io.options import LoadOptions
from ..io.read import resolve_source
from ..planning.plan import FRACTIONS, Plan
from ..planning.plan import plan as plan_model
from ..progress import Progress, no_progress
from .calibrate import calibrate


def plan(
    model: str,
    *,
    calibration: CalibrationRequest | None = None,
    load_options: LoadOptions | None = None,
    fractions: Sequence[float] = FRACTIONS,
    content: Content = "exact",
    solver: SolverOptions | None = None,
    progress: Progress = no_progress,
) -> Plan:
    """Predicts errors and costs of converting a checkpoint; see `collab.plan`.

    Args:
        model: folder or Hub id.
        calibration: data to calibrate on; by default random words.
        load_options: how to read the model.
        fractions: fractions of the query/key parameters to keep.
        content: treatment of the content term.
        solver: settings of the solver.
        progress: called after every batch of the calibration and after every layer.

    Raises:
        CollabError: as raised by `collab.load`, `collab.calibrate` and `collab.plan`.
    """
    load_options = load_options or LoadOptions()
    progress("loading the model", 0, None)
    checkpoint = load_native(resolve_source(model, load_options.revision), load_options)
    require_convertible(checkpoint.model)
    moments, _ = calibrate(checkpoint, calibration or CalibrationRequest(), progress=progress)
    return plan_model(checkpoint.model, moments, fractions=fractions, content=content, solver=solver, progress=progress)
