"""What to measure, and how."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch

from ..errors import ConfigurationError, DeviceError

Dtype = Literal["fp32", "bf16", "fp16"]
_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
LENGTHS = (32, 128, 512)


@dataclass(frozen=True)
class BenchOptions:
    """What to measure, and how.

    Attributes:
        batch_sizes: rows of a batch.
        lengths: tokens of a row; None for 32, 128 and 512, or what the model takes where that is less.
        rounds: how often each model runs at every batch size and length, in turn with the other.
        dtype: of weights and arithmetic: ``fp32``, ``bf16`` or ``fp16``.
        device: ``cpu`` or ``cuda``; None for a GPU where there is one.
        compile: run the models through `torch.compile`.
        memory: measure peak memory too; on a CPU by loading each model in a process of its own.
        seed: of the random inputs.

    Raises:
        ConfigurationError: if a value cannot be used.
    """

    batch_sizes: tuple[int, ...] = (1, 8)
    lengths: tuple[int, ...] | None = None
    rounds: int = 20
    dtype: Dtype = "fp32"
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
        if self.dtype not in get_args(Dtype):
            raise ConfigurationError(f"Unknown dtype {self.dtype!r}; choose one of {', '.join(_DTYPES)}.")
        if self.device not in (None, "cpu", "cuda"):
            raise ConfigurationError(f"device is cpu or cuda, not {self.device!r}.")

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype as torch names it."""
        return _DTYPES[self.dtype]

    def resolve_device(self) -> torch.device:
        """The device to measure on; DeviceError if it is not there."""
        if self.device == "cuda" and not torch.cuda.is_available():
            raise DeviceError("There is no CUDA device here. Leave --device away to measure on the CPU.")
        return torch.device(self.device or ("cuda" if torch.cuda.is_available() else "cpu"))
