"""Names of the forms, and solver settings.

Does not import torch, so that the command line can show names and defaults at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from ..device import resolve_device
from ..errors import ConfigurationError

FormName = Literal["concat", "cp", "tucker"]
FORMS: tuple[FormName, ...] = get_args(FormName)
"""Names of all forms; `form_named` has the forms themselves."""

DEFAULT_FORM: FormName = "cp"
"""The paper's form."""

NATIVE_FORM: FormName = "concat"
"""The form of the original's own attention: at R = K it computes that exactly."""

DESCRIPTIONS: dict[FormName, str] = {
    "cp": "dimensions shared by all heads, mixed by a matrix",
    "tucker": "shared, with a core for each head; more faithful and larger at the same rank",
    "concat": "narrower heads; the cheapest to run",
}
"""One line about each form, the default first."""

Content = Literal["exact", "folded"]
CONTENTS: tuple[Content, ...] = get_args(Content)

Method = Literal["structured", "tensorly"]
METHODS: tuple[Method, ...] = get_args(Method)
SolverPrecision = Literal["float32", "float64"]


if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class SolverOptions:
    """Settings of the solvers.

    Attributes:
        method: ``structured``, collab's solvers on the factored tensor, or ``tensorly``, the reference: `parafac` from
            a random start and `tucker`, on the dense tensor. The ``concat`` form is in closed form and needs no method.
        max_sweeps: largest number of sweeps over all factors.
        tolerance: stop when a sweep lowers the relative error by less than this.
        ridge: weight ρ of the degeneracy in the objective of structured CP (`collab.decomposition.cp`); 0 turns it off.
        precision: dtype of the sweeps of structured CP and of the ``tensorly`` method. The small linear systems, closed
            forms, eigenvectors and errors are always float64.
        device: where to solve, for example ``"cuda"``; None for the device that the weights are on.
        even_heads: whether the ``concat`` form gives every head the same number of dimensions, up to one. That is less
            faithful at a rank than dividing them by the heads' singular values, and faster: heads need no padding.

    Raises:
        ConfigurationError: if a value is out of range.
    """

    method: Method = "structured"
    max_sweeps: int = 200
    tolerance: float = 1e-5
    ridge: float = 5e-3
    precision: SolverPrecision = "float32"
    device: str | None = None
    even_heads: bool = False

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ConfigurationError(f"Unknown solver {self.method!r}; choose one of {', '.join(METHODS)}.")
        if self.precision not in get_args(SolverPrecision):
            raise ConfigurationError(f"Unknown precision {self.precision!r}; choose float32 or float64.")
        if not isinstance(self.max_sweeps, int) or self.max_sweeps < 1:
            raise ConfigurationError(f"max_sweeps must be a whole number of at least 1, not {self.max_sweeps!r}.")
        for name in ("tolerance", "ridge"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or not value >= 0:
                raise ConfigurationError(f"{name} must be a number that is not negative, not {value!r}.")

    @property
    def dtype(self) -> torch.dtype:
        """`precision` as a torch dtype."""
        import torch  # not at the top: the command line shows these defaults without it

        return getattr(torch, self.precision)

    def resolve_device(self, default: torch.device) -> torch.device:
        """The device to solve on: `device`, or else `default`, or the CPU if that has no float64.

        Raises:
            ConfigurationError: if `device` is not the name of a device.
            DeviceError: if it is not available or has no float64.
        """
        name = "cpu" if self.device is None and default.type == "mps" else self.device
        return resolve_device(name, default, float64=True)
