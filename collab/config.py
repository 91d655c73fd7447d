"""What a user asks of a conversion."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from .decomposition import FORMS, Form, SolverOptions
from .errors import ConfigurationError
from .rank import Rank, plain_rank


@dataclass(frozen=True)
class ConversionConfig:
    """Settings of a conversion.

    Attributes:
        rank: the number of shared query/key dimensions R of every layer: an integer from 1 to K, a fraction of K in
            (0, 1], or one of these for each attention layer. K, the number of query/key dimensions of the original
            layer, is its hidden size in most models.
        form: ``cp`` (shared dimensions that every head weighs its own way, the paper's form), ``tucker`` (shared
            dimensions and a core for each head) or ``concat`` (narrower heads, in closed form).
        solver: a `SolverOptions`, or the name of a method: ``structured`` or ``tensorly``.
        seed: of the random start of the ``tensorly`` method; the structured solvers are deterministic.

    Raises:
        ConfigurationError: if a value cannot be used. Ranks are checked against the model when it is converted.
    """

    rank: Rank | Sequence[Rank]
    form: Form = "cp"
    solver: SolverOptions | str = field(default_factory=SolverOptions)
    seed: int = 0

    def __post_init__(self) -> None:
        if self.form not in FORMS:
            raise ConfigurationError(f"Unknown form {self.form!r}; choose one of {', '.join(FORMS)}.")
        object.__setattr__(self, "rank", plain_rank(self.rank))
        if isinstance(self.solver, str):
            object.__setattr__(self, "solver", SolverOptions(method=self.solver))  # type: ignore[arg-type]
        if not isinstance(self.solver, SolverOptions):
            raise ConfigurationError(f"solver must be a SolverOptions or the name of a method, not {self.solver!r}.")
        if isinstance(self.seed, bool) or not isinstance(self.seed, int) or not 0 <= self.seed < 2**32:
            raise ConfigurationError(f"seed must be a whole number from 0 to {2**32 - 1}, not {self.seed!r}.")

    @property
    def solver_options(self) -> SolverOptions:
        """`solver` as options."""
        assert isinstance(self.solver, SolverOptions)
        return self.solver

    def to_dict(self) -> dict[str, Any]:
        """The settings as JSON values."""
        rank = list(self.rank) if isinstance(self.rank, Sequence) else self.rank
        return {"rank": rank, "form": self.form, "solver": asdict(self.solver_options), "seed": self.seed}
