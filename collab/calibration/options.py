"""Calibration settings. Does not import torch, so that the command line can show the defaults at once."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from ..data.source import Mixture, NamedSource, check_length
from ..errors import ConfigurationError


@dataclass(frozen=True)
class CalibrationOptions:
    """Settings of calibration.

    Attributes:
        samples: largest number of rows; of random words, a sixteenth of the number of tokens.
        max_length: largest number of tokens of a row; None for the model's limit.
        held_out: fraction of the rows that is held out of the moments, to measure how well they generalize: one row in
            so many, so that 0.4 holds out as many as 0.5.
        seed: random seed of the sample, of random words and of random directions in the output.
        shard: whether several processes share the weights of the model, each of which keeps a part, and the sums of
            its layers, instead of each having all of them.

    Raises:
        ConfigurationError: if a value is out of range.
    """

    samples: int = 1024
    max_length: int | None = None
    held_out: float = 0.125
    seed: int = 0
    shard: bool = False

    def __post_init__(self) -> None:
        if self.samples < 2:
            raise ConfigurationError(f"samples must be at least 2 rows, one of them to hold out, not {self.samples}.")
        check_length(self.max_length)
        if not 0 < self.held_out <= 0.5:
            raise ConfigurationError(f"held_out must be above 0 and at most 0.5, not {self.held_out}.")

    @property
    def period(self) -> int:
        """One row in this many is held out."""
        return max(2, round(1 / self.held_out))


@dataclass(frozen=True)
class CalibrationRequest:
    """Data and settings for calibrating a conversion.

    Attributes:
        source: ``synthetic`` (random words), ``none`` (no calibration), a `DataSource`, a `Mixture` of several, or
            ``default``: synthetic for text models, none for others.
        options: calibration settings.
        cache: file to keep the moments in.
        in_order: whether to calibrate every layer with the layers before it converted (`collab.calibrate_in_order`).

    Raises:
        ConfigurationError: if both `cache` and `in_order` are given.
    """

    source: NamedSource | Mixture | Literal["default", "none"] = "default"
    options: CalibrationOptions = field(default_factory=CalibrationOptions)
    cache: Path | None = None
    in_order: bool = False

    def __post_init__(self) -> None:
        if self.in_order and self.cache is not None:
            raise ConfigurationError("cache and in_order are exclusive: moments in order belong to one conversion.")
