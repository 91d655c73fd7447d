"""How much a model may cost or lose. Does not import torch, so that the command line can check it at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from ..errors import ConfigurationError

Unit = Literal["rank", "error", "params", "flops", "step_bytes", "seconds"]
Part = Literal["queries-keys", "values", "cross-queries-keys", "cross-values", "feed-forward", "layers"]
PARTS: tuple[Part, ...] = get_args(Part)
OF_ITSELF: tuple[Part, Part] = ("queries-keys", "values")
"""The parts of attention to the sequence itself."""
OF_ANOTHER: tuple[Part, Part] = ("cross-queries-keys", "cross-values")
"""The parts of cross-attention."""
Stack = Literal["encoder", "decoder"]
STACKS: tuple[Stack, ...] = get_args(Stack)


@dataclass(frozen=True)
class Budget:
    """How much to keep, or how much may be lost.

    Attributes:
        unit: ``rank`` (R), ``error`` (of a layer's scores, relative), ``params``, ``flops``, ``step_bytes`` or
            ``seconds``.
        value: the fraction of the original to keep at most, in the unit, but the largest error, or ranks as in
            `ConversionConfig`.
    """

    unit: Unit
    value: Any


def given(settings: object, names: Sequence[str]) -> dict[str, Any]:
    """The values of those of several settings that were given."""
    return {name: getattr(settings, name) for name in names if getattr(settings, name) is not None}


def check_fraction(name: str, value: Any) -> None:
    """Raises a ConfigurationError for a value that is not a fraction above 0."""
    if not (isinstance(value, int | float) and 0 < value <= 1):
        raise ConfigurationError(f"{name} must be above 0 and at most 1, not {value!r}.")
