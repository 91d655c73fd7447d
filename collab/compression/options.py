"""Settings of compression. Does not import torch, so that the command line can show the defaults at once."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from ..errors import ConfigurationError
from ..planning.budget import PARTS, STACKS, Budget, Part, Stack, Unit, check_fraction, given


@dataclass(frozen=True)
class CompressionConfig:
    """Settings of a compression: one of `flops`, `params`, `step_bytes` and `speedup` is the budget.

    Attributes:
        flops: fraction of the arithmetic of the model's layers to keep at most, in (0, 1]: multiply-adds of their
            projections and scores for a row of `length` tokens.
        params: fraction of the whole model's parameters to keep at most, in (0, 1].
        step_bytes: of a model that writes, the fraction to keep at most, in (0, 1], of the bytes of weights that its
            layers read to write a token: those of a decoder, without the keys and values of another sequence, which
            are computed once. On a CPU, these decide the time of a step of few rows.
        speedup: how many times as fast as the original the model is to be, above 1, on this processor at `rows` rows of
            `length` tokens; measured while the budget is chosen. Of a model that writes, it is of reading them and of
            writing `new_tokens`, with the number of beams that its generation config says.
        only: the parts that may become smaller: ``queries-keys``, ``values``, the same of cross-attention,
            ``cross-queries-keys`` and ``cross-values``, ``feed-forward`` and ``layers``, which are dropped as a whole.
        stacks: the stacks of an encoder-decoder whose layers may become smaller: ``encoder`` and ``decoder``.
        drop_layers: number of layers to drop; None for as many as lose least: measured, if the model can be healed for
            a short time meanwhile (`healer` of `collab.compress`), and predicted otherwise.
        length: tokens of a row that `flops` and `speedup` refer to; of a decoder's row, too.
        rows: rows that `speedup` refers to.
        new_tokens: tokens that a model that writes writes, for `speedup`.
        native: whether to change only what the original's own class can hold: one width for all feed-forward layers,
            and whole layers. `collab.expand` then gives a smaller model of that class.
        healed: whether the model is to be healed, which recovers more of a dropped layer than of narrower parts. With
            `drop_layers=None`, a dropped layer is then predicted to lose 0.55 of what is measured without it.
        seed: random seed of the directions in the model's output that the importance of neurons is measured in.

    Raises:
        ConfigurationError: if a value cannot be used.
    """

    FRACTIONS: ClassVar = (0.75, 0.5, 0.33, 0.25)
    """Budgets that a plan shows by default."""

    flops: float | None = None
    params: float | None = None
    step_bytes: float | None = None
    speedup: float | None = None
    only: tuple[Part, ...] = PARTS
    stacks: tuple[Stack, ...] = STACKS
    drop_layers: int | None = None
    length: int = 128
    rows: int = 8
    new_tokens: int = 64
    native: bool = False
    healed: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        budgets = given(self, ("flops", "params", "step_bytes", "speedup"))
        if len(budgets) != 1:
            raise ConfigurationError(
                "Give one budget: flops (--flops 0.5 keeps half of the layers' arithmetic), params (--params 0.5 keeps "
                "half of the model's parameters), step_bytes (--step-bytes 0.5 keeps half of what the layers read to "
                "write a token) or speedup (--speedup 1.8 makes it 1.8 times as fast)"
                + (f"; {' and '.join(budgets)} were given." if budgets else ".")
            )
        for name, value in given(self, ("flops", "params", "step_bytes")).items():
            check_fraction(name, value)
        if self.speedup is not None and not (isinstance(self.speedup, int | float) and 1 < self.speedup <= 100):
            raise ConfigurationError(f"speedup must be above 1 and at most 100, not {self.speedup!r}.")
        unknown = [part for part in self.only if part not in PARTS]
        if unknown or not self.only:
            raise ConfigurationError(f"only must name parts out of {', '.join(PARTS)}, not {list(self.only)}.")
        if not self.stacks or not set(self.stacks) <= set(STACKS):
            raise ConfigurationError(f"stacks must name {' or '.join(STACKS)}, or both, not {list(self.stacks)}.")
        if self.drop_layers is not None:
            _check_whole("drop_layers", self.drop_layers, 0)
            if self.drop_layers and "layers" not in self.only:
                raise ConfigurationError("drop_layers drops layers, but only does not name layers.")
        for name in ("length", "rows", "new_tokens"):
            _check_whole(name, getattr(self, name), 1)
        _check_whole("seed", self.seed, 0)
        if self.native and not set(self.only) & {"feed-forward", "layers"}:
            raise ConfigurationError(
                "The original's own class can hold narrower feed-forward layers and fewer layers, so with native=True "
                "only must name feed-forward or layers."
            )

    @property
    def budget(self) -> Budget:
        """The given one of the budgets; a speed as the seconds that it leaves."""
        if self.speedup is not None:
            return Budget("seconds", 1 / self.speedup)
        units: tuple[Unit, ...] = ("flops", "params", "step_bytes")
        return next(Budget(unit, value) for unit in units if (value := getattr(self, unit)) is not None)

    @property
    def narrowed(self) -> tuple[Part, ...]:
        """The parts whose widths may change."""
        return tuple(part for part in self.only if part != "layers" and (part == "feed-forward" or not self.native))

    def to_dict(self) -> dict[str, Any]:
        """The settings as JSON values."""
        return asdict(self) | {"only": list(self.only), "stacks": list(self.stacks)}


def _check_whole(name: str, value: Any, lowest: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < lowest:
        raise ConfigurationError(f"{name} must be a whole number of at least {lowest}, not {value!r}.")
