"""Settings of evaluation and benchmarks.

Nothing here imports torch, so that the command line can show the defaults at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..data.source import check_length
from ..device import DTYPES, Dtype, check_device
from ..errors import ConfigurationError

if TYPE_CHECKING:
    import torch


REPORTED_LENGTHS = (32, 128, 512)
"""Sequence lengths at which speed and arithmetic are reported, in tokens; less where a model takes less."""


@dataclass(frozen=True)
class EvaluateOptions:
    """Settings of an evaluation.

    Attributes:
        max_length: tokens of a row at most; None for as many as the model takes.
        samples: rows at most, the first ones; None for all.
        draws: number of bootstrap samples; 0 for no intervals.
        rounds: rounds of the comparison of speed.
        device: ``cpu`` or ``cuda``; None for a GPU where there is one.
        seed: seed of the bootstrap and of masked tokens.
        label_column: column of the labels; None to look for the usual names. Like `samples`, it is used where rows are
            read.

    Raises:
        ConfigurationError: if a value cannot be used.
    """

    max_length: int | None = None
    samples: int | None = None
    draws: int = 1000
    rounds: int = 3
    device: str | None = None
    seed: int = 0
    label_column: str | None = None

    def __post_init__(self) -> None:
        if self.draws < 0 or self.rounds < 1 or (self.samples is not None and self.samples < 1):
            raise ConfigurationError("draws must be at least 0, and rounds and samples at least 1.")
        check_length(self.max_length)
        check_device(self.device)


@dataclass(frozen=True)
class BenchOptions:
    """Settings of a speed measurement.

    Attributes:
        batch_sizes: numbers of rows of a batch.
        lengths: numbers of tokens of a row; None for 32, 128 and 512, up to the model's limit.
        rounds: calls of each model at every batch size and length; two models alternate.
        dtype: dtype of weights and arithmetic: ``float32``, ``bfloat16`` or ``float16``.
        device: ``cpu`` or ``cuda``; None for a GPU where there is one.
        compile: run the models through `torch.compile`.
        memory: measure peak memory too; on a CPU by loading each model in a process of its own.
        seed: seed of the random inputs.

    Raises:
        ConfigurationError: if a value cannot be used.
    """

    batch_sizes: tuple[int, ...] = (1, 8)
    lengths: tuple[int, ...] | None = None
    rounds: int = 20
    dtype: Dtype = "float32"
    device: str | None = None
    compile: bool = False
    memory: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.batch_sizes or min(self.batch_sizes) < 1:
            raise ConfigurationError("A batch size must be at least 1.")
        if self.lengths is not None and (not self.lengths or min(self.lengths) < 1):
            raise ConfigurationError("A length must be at least 1 token.")
        if self.rounds < 1:
            raise ConfigurationError("rounds must be at least 1.")
        if self.dtype not in DTYPES:
            raise ConfigurationError(f"Unknown dtype {self.dtype!r}; choose one of {', '.join(DTYPES)}.")
        check_device(self.device)

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype as a `torch.dtype`."""
        import torch  # not at the top: the command line shows these defaults without it

        return getattr(torch, self.dtype)
