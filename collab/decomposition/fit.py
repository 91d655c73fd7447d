"""The outcome of an iterative solve."""

from __future__ import annotations

from dataclasses import dataclass

from .factors import Factors


@dataclass(frozen=True)
class Fit:
    """Factors, and how the solver came to them.

    Attributes:
        factors: the result.
        errors: relative error ‖𝒯 - 𝒯̂‖/‖𝒯‖ at the start, where the solver knows it, and after every sweep.
        sweeps: sweeps done.
        converged: whether the error had stopped falling, by `SolverOptions.tolerance`, before the sweeps ran out.
    """

    factors: Factors
    errors: tuple[float, ...]
    sweeps: int
    converged: bool
