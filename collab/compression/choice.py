"""What a compression chooses by measuring times and by healing for a short time. Measured again, it may differ."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass

from ..planning.allocation import Widths
from ..steps.compression import Trial
from ..steps.step import Json


@dataclass(frozen=True)
class Choice:
    """The widths of a compressed model, and what was measured to choose them.

    Attributes:
        widths: by layer, the widths of its parts; None for a layer that is dropped.
        predicted_loss: predicted disagreement with the original before any training.
        trials: the numbers of dropped layers that were tried.
        speedup: how many times as fast as the original the model is, if that was asked for.
        reading_speedup: the same of reading and a first token, of a model that generates text.
        step_speedup: the same of each further token.
    """

    widths: Widths
    predicted_loss: float
    trials: tuple[Trial, ...] = ()
    speedup: float | None = None
    reading_speedup: float | None = None
    step_speedup: float | None = None

    def to_dict(self) -> Json:
        """The choice as JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, record: Json) -> Choice:
        """The choice from JSON values.

        Raises:
            KeyError, TypeError: if they are not those of a choice.
        """
        trials = tuple(Trial(**trial) for trial in record["trials"])
        return cls(**record | {"widths": tuple(record["widths"]), "trials": trials})


Once = Callable[[Callable[[], Choice]], Choice]
"""Makes a choice with the given function, or gives that which it made the last time."""
