"""Throughput and latency of models in memory, measured alternately."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel

from ..device import device_name, resolve_device
from ..errors import ConfigurationError, OutOfMemoryError, first_line, is_short_of_memory
from ..models.cache import CacheBytes, cache_bytes
from ..models.inputs import has_length, input_kind, lengths_within, longest_input, random_inputs
from ..models.layers import count_bytes, count_parameters
from ..models.states import evaluating
from ..progress import Progress, no_progress
from .bench_report import BenchedModel, BenchReport, BenchSetting, PeakMemory
from .options import REPORTED_LENGTHS, BenchOptions
from .timing import Run, Spread, TimedElsewhere, rounds_in_turn, wait

_WARM = 2
"""Calls before the clock starts, which choose kernels and fill caches."""


_UNITS = {"text": "rows", "images": "images", "audio": "recordings", "videos": "videos"}
"""What inputs of one size are counted in."""


def bench(
    models: Sequence[PreTrainedModel],
    options: BenchOptions | None = None,
    *,
    names: Sequence[str] | None = None,
    progress: Progress = no_progress,
) -> BenchReport:
    """Measures the speed of one model, or of two alternately, on random inputs without padding.

    Memory is measured on a GPU only; on a CPU that takes a process per model, which `collab.checkpoints.bench` starts.

    Args:
        models: the model, and optionally a second one to compare it with. They are not changed; a copy is measured if
            dtype or device differ.
        options: what to measure.
        names: names of the models for the report; None for their classes.
        progress: called after every batch size and length.

    Raises:
        ConfigurationError: if a length is above a model's limit, the models take inputs of different kinds, or
            `torch.compile` fails.
        DeviceError: if the device is not available.
        OutOfMemoryError: if a batch is too large; names its size and length.
    """
    options = options or BenchOptions()
    if not 1 <= len(models) <= 2:
        raise ConfigurationError(f"Give one model, or two to compare, not {len(models)}.")
    names = names or [type(model).__name__ for model in models]
    device = resolve_device(options.device)
    table = Grid.of(models, names, options)
    with _placed(models, device, options) as placed, _compiled(placed, options) as callables:

        def runs_at(rows: int, length: int | None) -> list[Run]:
            return [
                (call, [random_inputs(model, rows, length or 1, vocabulary=table.vocabulary, seed=options.seed)])
                for model, call in zip(placed, callables, strict=True)
            ]

        settings = measure(table, runs_at, options, progress)
        memories: list[PeakMemory | None] = [None] * len(models)
        if device.type == "cuda" and options.memory:
            runs = runs_at(*table.sizes[-1])
            memories = [_peak(model, run) for model, run in zip(placed, runs, strict=True)]
        caches = [cache_bytes(model) for model in placed]
    measured = tuple(_measured(*entry) for entry in zip(names, models, caches, memories, strict=True))
    return table.report(measured, settings, options, device)


@dataclass(frozen=True)
class Grid:
    """What models are measured on.

    Attributes:
        sizes: batch sizes, each with a length, or None for inputs of one size.
        unit: what inputs are counted in.
        vocabulary: token ids are below it; None for models without.
        notes: notes for the user.
    """

    sizes: list[tuple[int, int | None]]
    unit: str
    vocabulary: int | None
    notes: tuple[str, ...]

    @classmethod
    def of(cls, models: Sequence[PreTrainedModel], names: Sequence[str], options: BenchOptions) -> Grid:
        """The sizes that all models take; errors as `lengths_of`."""
        lengths, notes = lengths_of(models, names, options)
        sizes = [(rows, length) for rows in sorted(set(options.batch_sizes)) for length in lengths]
        vocabulary = min(getattr(model.config, "vocab_size", 0) or 0 for model in models) or None
        unit = "tokens" if lengths[0] is not None else _UNITS[input_kind(models[0])]
        return cls(sizes, unit, vocabulary, notes)

    def report(
        self,
        models: tuple[BenchedModel, ...],
        settings: Sequence[BenchSetting],
        options: BenchOptions,
        device: torch.device,
    ) -> BenchReport:
        """The report of a measurement."""
        return BenchReport(
            models=models,
            settings=tuple(settings),
            unit=self.unit,
            rounds=options.rounds,
            dtype=options.dtype,
            device=device_name(device),
            threads=torch.get_num_threads(),
            compiled=options.compile,
            memory_at=self.sizes[-1],
            notes=self.notes,
        )


def measure(
    grid: Grid, runs_at: Callable[[int, int | None], list[Run]], options: BenchOptions, progress: Progress
) -> list[BenchSetting]:
    """Times models at every size.

    Args:
        grid: the sizes.
        runs_at: the models with inputs of a batch size and length.
        options: rounds.
        progress: called after every size.

    Raises:
        OutOfMemoryError: if a batch is too large; names its size and length.
    """
    settings = []
    progress("measuring", 0, len(grid.sizes))
    for done, (rows, length) in enumerate(grid.sizes, 1):
        with _too_large(rows, length):
            settings.append(_measure(runs_at(rows, length), rows, length, options))
        progress("measuring", done, len(grid.sizes))
    return settings


def _measured(name: str, model: PreTrainedModel, cache: CacheBytes | None, memory: PeakMemory | None) -> BenchedModel:
    implementation = str(model.config._attn_implementation)
    return BenchedModel(name, type(model).__name__, count_parameters(model), None, implementation, cache, memory)


def lengths_of(
    models: Sequence[PreTrainedModel], names: Sequence[str], options: BenchOptions
) -> tuple[list[int | None], tuple[str, ...]]:
    """Lengths to measure at (None for inputs of one size), and notes on them for the user.

    Raises:
        ConfigurationError: if a length is above a model's limit, or the models take different inputs.
    """
    if len({model.main_input_name for model in models}) > 1:
        raise ConfigurationError(
            f"{names[0]} and {names[1]} take inputs of different kinds, so they cannot be compared."
        )
    if not has_length(models[0]):
        if options.lengths is not None:
            raise ConfigurationError(
                f"{names[0]} takes {input_kind(models[0])} of one size, so lengths (--length) do not apply."
            )
        if len({random_inputs(model, 1, 1)[model.main_input_name].shape for model in models}) > 1:
            raise ConfigurationError(f"{names[0]} and {names[1]} take {input_kind(models[0])} of different sizes.")
        return [None], ()
    limits = [longest_input(model) for model in models]
    limit = min(limits)
    least = names[limits.index(limit)]
    longest = max(options.lengths or REPORTED_LENGTHS)
    if options.lengths is not None:
        if longest > limit:
            raise ConfigurationError(
                f"{least} takes {limit} tokens at most, so length {longest} (--length) is too long."
            )
        return [*sorted(set(options.lengths))], ()
    lengths = lengths_within(models[limits.index(limit)], REPORTED_LENGTHS)
    note = f"{least} takes {limit} tokens at most, so that was measured instead of longer rows."
    return [*lengths], (note,) if longest > limit else ()


def _measure(runs: list[Run], rows: int, length: int | None, options: BenchOptions) -> BenchSetting:
    """Times every model at one batch size and length."""
    if options.compile:
        torch.compiler.reset()  # compile every setting for its own shape, never falling back to uncompiled code
    rounds = rounds_in_turn(runs, options.rounds, warm=_WARM)
    seconds = tuple(Spread.of([times[number] for times in rounds]) for number in range(len(runs)))
    ratio = None
    if len(runs) == 2:
        by_round = Spread.of([second / first for first, second in rounds])
        ratio = Spread(seconds[1].median / seconds[0].median, by_round.low, by_round.high)
    count = rows * (length or 1)
    return BenchSetting(rows, length, seconds, tuple(count / spread.median for spread in seconds), ratio)


def _peak(model: PreTrainedModel, run: Run) -> PeakMemory:
    """Peak memory of a model's weights and one call on a GPU."""
    device = model.device
    call, batches = run
    assert not isinstance(call, TimedElsewhere)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    with torch.no_grad():
        call(**batches[0])
    wait(device)
    weights = count_bytes([*model.parameters(), *model.buffers()])
    return PeakMemory(weights + torch.cuda.max_memory_allocated(device) - before, None)


@contextlib.contextmanager
def _placed(
    models: Sequence[PreTrainedModel], device: torch.device, options: BenchOptions
) -> Iterator[list[PreTrainedModel]]:
    """The models in evaluation mode, copied where dtype or device differ."""
    dtype = options.torch_dtype
    placed: list[Any] = []
    with evaluating(*models):
        for model in models:
            fits = model.device.type == device.type and model.dtype == dtype
            try:
                placed.append((model if fits else _copied(model, device, dtype)).eval())
            except (torch.OutOfMemoryError, MemoryError) as error:
                raise OutOfMemoryError(f"The weights of {type(model).__name__} do not fit on the {device}.") from error
        yield placed


def _copied(model: Any, device: torch.device, dtype: torch.dtype) -> Any:
    return copy.deepcopy(model).to(device=device, dtype=dtype)


@contextlib.contextmanager
def _compiled(models: list[PreTrainedModel], options: BenchOptions) -> Iterator[list[Callable[..., Any]]]:
    """The models as callables, compiled if the options say so."""
    if not options.compile:
        yield list(models)
        return
    from torch._dynamo.exc import TorchDynamoException

    try:
        yield [torch.compile(model, dynamic=False) for model in models]
    except TorchDynamoException as error:
        raise ConfigurationError(
            f"torch.compile failed; measure without it (compile=False, no --compile). {first_line(error)}"
        ) from error
    finally:
        torch.compiler.reset()


@contextlib.contextmanager
def _too_large(rows: int, length: int | None) -> Iterator[None]:
    """Turns torch's errors for lack of memory into one that names the batch."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if is_short_of_memory(error):
            raise OutOfMemoryError(too_large(rows, length)) from error
        raise


def too_large(rows: int, length: int | None) -> str:
    """The message for lack of memory."""
    unit = "inputs" if length is None else f"rows of {length} tokens"
    shorter = "" if length is None else " or length (--length)"
    return (
        f"There is too little memory for {rows} {unit}. Use a smaller batch (--batch-size){shorter}, or bfloat16 "
        "(--dtype)."
    )
