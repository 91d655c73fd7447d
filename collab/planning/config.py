"""Settings of a conversion."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Literal, get_args

from ..decomposition import FORMS, FormName, SolverOptions
from ..decomposition.options import CONTENTS, Content
from ..decomposition.rank import Rank, plain_rank
from ..errors import ConfigurationError
from .budget import Budget, Unit, check_fraction, given

Optimize = Literal["size", "speed"]
AllocationRule = Literal["auto", "balanced", "uniform"]
Refine = Literal["auto", "none"] | int

_BUDGETS = ("params", "max_error")


@dataclass(frozen=True)
class ConversionConfig:
    """Settings of a conversion: one of `rank`, `params` and `max_error` says how much to keep.

    Attributes:
        rank: the number of shared query/key dimensions R of every layer: an integer from 1 to K, a fraction of K in
            (0, 1], or one of these for each attention layer. K, the number of query/key dimensions of the original
            layer, is its hidden size in most models.
        form: ``cp`` (shared dimensions with a weight for each head, the paper's form), ``tucker`` (shared dimensions
            and a core for each head), ``concat`` (narrower heads, in closed form), or, with a budget, ``auto`` for the
            best of them.
        params: fraction of the query/key parameters to keep at most, in (0, 1].
        max_error: largest relative error of a layer: of the scores with calibration, of the weights without.
        optimize: objective of ``auto``: ``size`` (the lowest error within `params`, or the fewest parameters within
            `max_error`) or ``speed`` (the least time estimated for a CPU at 16 to 512 tokens, or what the model accepts
            where that is less; within `params`, ``cp`` and ``tucker`` then have d dimensions at most, since wider heads
            are slower than the original's; of forms that are about as fast, the one with the lowest error).
        allocation: how `params` is divided among the layers: ``balanced``, by the error of their scores, or
            ``uniform``, the same fraction for each. ``auto`` is balanced, but uniform if the calibration was on random
            words, which tell too little about the differences between layers.
        content: ``exact`` keeps the content bias as it is, an additive term of the scores; ``folded`` approximates it
            by an offset of the queries, so that any attention kernel applies and fewer parameters are stored.
        refine: train every converted layer alone, on the rows of the calibration, to give the attention output of the
            original (`collab.refine`): that many steps, or ``none``. ``auto`` takes the default number wherever there
            are such rows. With `max_error`, only layers whose scores stay within it take the new weights.
        compare: whether to predict the error of every form at the same number of parameters, for the report.
        solver: a `SolverOptions`, or the name of a method: ``structured`` or ``tensorly``.
        seed: random seed of the ``tensorly`` method; the structured solvers are deterministic.

    Raises:
        ConfigurationError: if a value cannot be used. Ranks are checked against the model when it is converted.
    """

    FRACTIONS: ClassVar = (1 / 2, 1 / 3, 1 / 6)
    """Budgets that a plan shows by default."""

    rank: Rank | Sequence[Rank] | None = None
    form: FormName | Literal["auto"] = "cp"
    params: float | None = None
    max_error: float | None = None
    optimize: Optimize = "size"
    allocation: AllocationRule = "auto"
    content: Content = "exact"
    refine: Refine = "auto"
    compare: bool = True
    solver: SolverOptions | str = field(default_factory=SolverOptions)
    seed: int = 0

    def __post_init__(self) -> None:
        amounts = given(self, ("rank", *_BUDGETS))
        if len(amounts) != 1:
            raise ConfigurationError(
                "Say how much to keep by one of rank (--rank 128 keeps 128 query/key dimensions), params (--params 0.5 "
                "keeps half of the query/key parameters) and max_error (--max-error 0.1)"
                + (f"; {' and '.join(amounts)} were given." if amounts else ".")
            )
        if self.form not in (*FORMS, "auto"):
            raise ConfigurationError(f"Unknown form {self.form!r}; choose one of {', '.join(FORMS)}, auto.")
        if self.form == "auto" and self.rank is not None:
            raise ConfigurationError(
                "A rank means another size in every form, so form='auto' needs a budget instead: params or max_error."
            )
        if self.rank is not None:
            object.__setattr__(self, "rank", plain_rank(self.rank))
        for name, value in given(self, _BUDGETS).items():
            check_fraction(name, value)
        if self.optimize not in get_args(Optimize):
            raise ConfigurationError(f"Unknown objective {self.optimize!r}; optimize size or speed.")
        if self.allocation not in get_args(AllocationRule):
            raise ConfigurationError(f"Unknown allocation {self.allocation!r}; choose auto, balanced or uniform.")
        if self.content not in CONTENTS:
            raise ConfigurationError(f"Unknown content {self.content!r}; choose one of {', '.join(CONTENTS)}.")
        self._check_refine()
        if isinstance(self.solver, str):
            object.__setattr__(self, "solver", SolverOptions(method=self.solver))  # type: ignore[arg-type]
        if not isinstance(self.solver, SolverOptions):
            raise ConfigurationError(f"solver must be a SolverOptions or the name of a method, not {self.solver!r}.")
        if isinstance(self.seed, bool) or not isinstance(self.seed, int) or not 0 <= self.seed < 2**32:
            raise ConfigurationError(f"seed must be a whole number from 0 to {2**32 - 1}, not {self.seed!r}.")

    def _check_refine(self) -> None:
        steps = self.refine
        whole = isinstance(steps, int) and not isinstance(steps, bool) and steps >= 0
        if not whole and steps not in ("auto", "none"):
            raise ConfigurationError(f"refine must be auto, none or a number of steps, not {steps!r}.")

    @property
    def solver_options(self) -> SolverOptions:
        """`solver` as `SolverOptions`."""
        assert isinstance(self.solver, SolverOptions)
        return self.solver

    @property
    def budget(self) -> Budget:
        """The given one of `rank`, `params` and `max_error`."""
        units: dict[str, Unit] = {"rank": "rank", "params": "params", "max_error": "error"}
        ((name, value),) = given(self, tuple(units)).items()
        return Budget(units[name], value)

    def to_dict(self) -> dict[str, Any]:
        """The settings as JSON values."""
        return asdict(self)
