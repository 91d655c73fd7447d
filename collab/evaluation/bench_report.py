"""Reports of speed and memory measurements."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from ..models.cache import CacheBytes
from ..steps.step import installed_versions
from .timing import Spread


@dataclass(frozen=True)
class PeakMemory:
    """Peak memory at the largest batch.

    Attributes:
        peak_bytes: on a GPU, memory that torch allocated for the weights and one call. On a CPU, peak resident memory
            of a process that runs only the model, Python and its libraries included.
        libraries_bytes: on a CPU, the part of it that was in use before the model was loaded; None on a GPU.
    """

    peak_bytes: int
    libraries_bytes: int | None


@dataclass(frozen=True)
class BenchedModel:
    """A model that was measured.

    Attributes:
        name: name from the user.
        class_name: its class.
        parameters: number of its parameters, tied ones counted once.
        file_bytes: size of its weights files; None for a model in memory.
        attention: attention implementation in transformers, or the runtime where a graph is measured.
        precision: what it is run in where a graph is measured; None where all models have the dtype of the report.
        cache: what the cache of a decoder holds for each token; None for an encoder.
        memory: peak memory; None if it was not measured.
    """

    name: str
    class_name: str
    parameters: int
    file_bytes: int | None
    attention: str
    cache: CacheBytes | None
    memory: PeakMemory | None
    precision: str | None = None


@dataclass(frozen=True)
class BenchSetting:
    """Times at one batch size and length.

    Attributes:
        batch_size: B.
        length: T; None for images and recordings of one size.
        seconds: time of one call, for each model.
        per_second: tokens, images or recordings per second at the median, for each model.
        ratio: how many times faster the first model is than the second: ratio of the medians, with the quartiles of
            the ratios of single rounds; None for one model.
    """

    batch_size: int
    length: int | None
    seconds: tuple[Spread, ...]
    per_second: tuple[float, ...]
    ratio: Spread | None


@dataclass(frozen=True)
class BenchReport:
    """A measurement of one model, or of two alternately.

    Attributes:
        models: the model, and the one it was compared with.
        settings: one entry per batch size and length.
        unit: ``tokens``, ``images`` or ``recordings``.
        rounds: calls of each model at every setting.
        dtype: dtype of weights and arithmetic.
        device: name of the device.
        threads: number of torch threads, relevant on a CPU.
        compiled: whether `torch.compile` was used.
        memory_at: batch size and length at which the memory was measured.
        notes: notes for the user.
        versions: versions of Python and the packages.
    """

    models: tuple[BenchedModel, ...]
    settings: tuple[BenchSetting, ...]
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
