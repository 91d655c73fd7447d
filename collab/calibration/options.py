"""What to calibrate on. Nothing here imports torch, so that the command line can show the defaults at once."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from ..data.source import DataSource
from ..errors import ConfigurationError


@dataclass(frozen=True)
class CalibrationOptions:
    """How much to calibrate on.

    Attributes:
        samples: rows at most.
        max_length: tokens of a row at most; None for as many as the model takes.
        held_out: the part of the rows that is kept out of the moments, to see how well they carry over.
        seed: of the sample, of random vocabulary and of the random directions in the output.

    Raises:
        ConfigurationError: if a value is out of range.
    """

    samples: int = 1024
    max_length: int | None = None
    held_out: float = 0.125
    seed: int = 0

    def __post_init__(self) -> None:
        if self.samples < 2:
            raise ConfigurationError(f"Calibration needs at least 2 rows, one of them to hold out, not {self.samples}.")
        if self.max_length is not None and self.max_length < 2:
            raise ConfigurationError(f"max_length must be at least 2 tokens, not {self.max_length}.")
        if not 0 < self.held_out <= 0.5:
            raise ConfigurationError(f"held_out must be above 0 and at most 0.5, not {self.held_out}.")

    @property
    def period(self) -> int:
        """Every how-manyth row is held out."""
        return max(2, round(1 / self.held_out))


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
