"""What was measured, for people and for programs."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from ..io.report import installed_versions
from .timing import Spread


@dataclass(frozen=True)
class Memory:
    """Peak memory at the largest batch.

    Attributes:
        peak_bytes: on a GPU, what torch allocated for the weights and the run. On a CPU, the peak of resident memory of
            a process that does nothing else, Python and its libraries included.
        libraries_bytes: on a CPU, how much of that was there before the model was loaded; None on a GPU.
    """

    peak_bytes: int
    libraries_bytes: int | None


@dataclass(frozen=True)
class Measured:
    """One model.

    Attributes:
        name: what the user called it.
        class_name: its class.
        parameters: of the model, tied ones once.
        file_bytes: size of the files that hold its weights, in their dtype; None for a model in memory.
        attention: the attention implementation that it ran with.
        memory: None if it was not measured, which a note says.
    """

    name: str
    class_name: str
    parameters: int
    file_bytes: int | None
    attention: str
    memory: Memory | None


@dataclass(frozen=True)
class Setting:
    """One batch size and length.

    Attributes:
        batch_size: B.
        length: T; None for images.
        seconds: of one call, for each model.
        per_second: tokens, or images, for each model, at the median.
        ratio: how many times as fast the first model is as the second: of the medians, with the quartiles of the
            ratios of single rounds; None for one model.
    """

    batch_size: int
    length: int | None
    seconds: tuple[Spread, ...]
    per_second: tuple[float, ...]
    ratio: Spread | None


@dataclass(frozen=True)
class BenchReport:
    """A measurement of one model, or of two in turn.

    Attributes:
        models: the model, and the one it was measured against.
        settings: every batch size and length.
        unit: ``tokens`` or ``images``.
        rounds: calls of each model at every setting.
        dtype: of weights and arithmetic.
        device: name of the device.
        threads: of torch, which matter on a CPU.
        compiled: whether `torch.compile` was used.
        memory_at: batch size and length at which the memory was measured.
        notes: what a user should know besides.
        versions: of Python and the packages.
    """

    models: tuple[Measured, ...]
    settings: tuple[Setting, ...]
    unit: str
    rounds: int
    dtype: str
    device: str
    threads: int
    compiled: bool
    memory_at: tuple[int, int | None]
    notes: tuple[str, ...] = ()
    versions: dict[str, str] = field(default_factory=installed_versions)

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON values."""
        return asdict(self)
