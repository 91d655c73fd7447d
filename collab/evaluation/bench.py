"""Throughput and latency of models in memory, measured in turn."""

from __future__ import annotations

import contextlib
import copy
import platform
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from transformers import PreTrainedModel

from ..errors import ConfigurationError, DeviceError, OutOfMemoryError, first_line
from ..models.inputs import longest_input, random_inputs
from .bench_report import BenchReport, Measured, Memory, Setting
from .timing import Run, Spread, time_in_turn, wait

OnSetting = Callable[[int, int], None]
"""Called after every batch size and length, with their number and the number in all."""

_WARM = 2
"""Calls before the clock starts: kernels are chosen, and caches filled, in the first ones."""


def bench_models(
    models: Sequence[PreTrainedModel],
    options: BenchOptions | None = None,
    *,
    names: Sequence[str] | None = None,
    on_setting: OnSetting | None = None,
) -> BenchReport:
    """Measures one model, or two in turn, on random inputs without padding.

    Memory is measured on a GPU only; on a CPU it takes a process of its own, which `bench` starts.

    Args:
        models: the model, and perhaps one to measure it against. They stay as they are: where dtype or device are to be
            others, a copy is measured.
        options: what to measure.
        names: of the models, for the report; their classes if None.
        on_setting: called after every batch size and length.

    Raises:
        ConfigurationError: if a length is beyond what a model takes, the models take inputs of different kinds, or
            `torch.compile` fails.
        DeviceError: if the device is not there.
        OutOfMemoryError: naming the batch size and length that was too large.
    """
    options = options or BenchOptions()
    if not 1 <= len(models) <= 2:
        raise ConfigurationError(f"One model is measured, or two against each other, not {len(models)}.")
    names = names or [type(model).__name__ for model in models]
    device = options.resolve_device()
    lengths, notes = lengths_of(models, names, options)
    grid = [(rows, length) for rows in sorted(set(options.batch_sizes)) for length in lengths]
    vocabulary = min(getattr(model.config, "vocab_size", 0) or 0 for model in models) or None
    settings = []
    memories: list[Memory | None] = [None] * len(models)
    with _placed(models, device, options) as placed, _compiled(placed, options) as callables:
        for done, (rows, length) in enumerate(grid, 1):
            with _too_large(rows, length):
                runs: list[Run] = [
                    (call, [random_inputs(model, rows, length or 1, vocabulary=vocabulary, seed=options.seed)])
                    for model, call in zip(placed, callables, strict=True)
                ]
                settings.append(_measure(runs, rows, length, options))
                if device.type == "cuda" and options.memory and done == len(grid):
                    memories = [_peak(model, run) for model, run in zip(placed, runs, strict=True)]
            if on_setting is not None:
                on_setting(done, len(grid))
    measured = [
        Measured(
            name,
            type(model).__name__,
            sum(parameter.numel() for parameter in model.parameters()),
            None,
            str(model.config._attn_implementation),
            memory,
        )
        for name, model, memory in zip(names, models, memories, strict=True)
    ]
    return BenchReport(
        models=tuple(measured),
        settings=tuple(settings),
        unit="tokens" if grid[0][1] is not None else "images",
        rounds=options.rounds,
        dtype=options.dtype,
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU ({platform.machine()})",
        threads=torch.get_num_threads(),
        compiled=options.compile,
        memory_at=grid[-1],
        notes=notes,
    )


def lengths_of(
    models: Sequence[PreTrainedModel], names: Sequence[str], options: BenchOptions
) -> tuple[list[int | None], tuple[str, ...]]:
    """Lengths to measure at, None standing for images, and what to say about them.

    Raises:
        ConfigurationError: if a length was asked for that a model does not take, or the models do not go together.
    """
    if len({model.main_input_name for model in models}) > 1:
        raise ConfigurationError(
            f"{names[0]} and {names[1]} take inputs of different kinds, so they cannot be compared."
        )
    if models[0].main_input_name == "pixel_values":
        if options.lengths is not None:
            raise ConfigurationError(f"{names[0]} takes images of one size, so --length does not apply.")
        sizes = {str((model.config.image_size, model.config.num_channels)) for model in models}
        if len(sizes) > 1:
            raise ConfigurationError(f"{names[0]} and {names[1]} take images of different sizes.")
        return [None], ()
    limits = [longest_input(model) for model in models]
    limit = min(limits)
    least = names[limits.index(limit)]
    longest = max(options.lengths or LENGTHS)
    if options.lengths is not None:
        if longest > limit:
            raise ConfigurationError(f"{least} takes {limit} tokens at most, so --length {longest} cannot be measured.")
        return [*sorted(set(options.lengths))], ()
    lengths = sorted({min(length, limit) for length in LENGTHS})
    note = f"{least} takes {limit} tokens at most, so that was measured instead of longer rows."
    return list(lengths), (note,) if longest > limit else ()


def _measure(runs: list[Run], rows: int, length: int | None, options: BenchOptions) -> Setting:
    """Times every model at one batch size and length."""
    if options.compile:
        torch.compiler.reset()  # a shape of its own for every setting, and never back to uncompiled code
    for _ in range(_WARM):
        time_in_turn(runs)
    rounds = [time_in_turn(runs, backwards=number % 2 == 1) for number in range(options.rounds)]
    seconds = tuple(Spread.of([one[number] for one in rounds]) for number in range(len(runs)))
    ratio = None
    if len(runs) == 2:
        by_round = Spread.of([second / first for first, second in rounds])
        ratio = Spread(seconds[1].median / seconds[0].median, by_round.low, by_round.high)
    count = rows * (length or 1)
    return Setting(rows, length, seconds, tuple(count / one.median for one in seconds), ratio)


def _peak(model: PreTrainedModel, run: Run) -> Memory:
    """What a model's weights and one call take on a GPU."""
    device = model.device
    call, batches = run
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    with torch.no_grad():
        call(**batches[0])
    wait(device)
    weights = sum(one.numel() * one.element_size() for one in [*model.parameters(), *model.buffers()])
    return Memory(weights + torch.cuda.max_memory_allocated(device) - before, None)


@contextlib.contextmanager
def _placed(
    models: Sequence[PreTrainedModel], device: torch.device, options: BenchOptions
) -> Iterator[list[PreTrainedModel]]:
    """The models in evaluation mode, as copies where dtype or device are others."""
    dtype = options.torch_dtype
    modes = [model.training for model in models]
    placed: list[Any] = []
    try:
        for model in models:
            fits = model.device.type == device.type and model.dtype == dtype
            try:
                placed.append((model if fits else _copied(model, device, dtype)).eval())
            except (torch.OutOfMemoryError, MemoryError) as error:
                raise OutOfMemoryError(f"The weights of {type(model).__name__} do not fit on the {device}.") from error
        yield placed
    finally:
        for model, training in zip(models, modes, strict=True):
            model.train(training)


def _copied(model: Any, device: torch.device, dtype: torch.dtype) -> Any:
    return copy.deepcopy(model).to(device=device, dtype=dtype)


@contextlib.contextmanager
def _compiled(models: list[PreTrainedModel], options: BenchOptions) -> Iterator[list[Callable[..., Any]]]:
    """The models as they are to be called."""
    if not options.compile:
        yield list(models)
        return
    from torch._dynamo.exc import TorchDynamoException

    try:
        yield [torch.compile(model, dynamic=False) for model in models]
    except TorchDynamoException as error:
        raise ConfigurationError(
            f"torch.compile fails here; leave --compile away. It says: {first_line(error)}"
        ) from error
    finally:
        torch.compiler.reset()


@contextlib.contextmanager
def _too_large(rows: int, length: int | None) -> Iterator[None]:
    """Turns what torch says when memory runs out into an error that names the batch."""
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError) as error:
        raise OutOfMemoryError(too_large(rows, length)) from error
    except RuntimeError as error:
        if "can't allocate memory" in str(error):
            raise OutOfMemoryError(too_large(rows, length)) from error
        raise


def too_large(rows: int, length: int | None) -> str:
    """What to say when memory runs out."""
    of = "images" if length is None else f"rows of {length} tokens"
    shorter = "" if length is None else " or --length"
    return f"There is too little memory for {rows} {of}. Give a smaller --batch-size{shorter}, or --dtype bf16."


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
