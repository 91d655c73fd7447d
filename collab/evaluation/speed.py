"""The speed of a model or graph beside the one that it was made from, in a few seconds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from ..device import device_name
from ..graphs.runtime import Session
from ..graphs.served import module_of
from ..models.assembly import in_dtype
from ..models.inputs import has_length, longest_input, random_inputs
from ..models.states import evaluating
from ..steps.measurement import Speed
from .timing import Run, Spread, rounds_in_turn

ROWS, LENGTH = 8, 128
_SECONDS, _LONGEST = 1.5, 10.0
_LEAST, _ENOUGH, _MOST = 3, 9, 31


def measure_speed(model: PreTrainedModel, original: PreTrainedModel, rows: int = ROWS, length: int = LENGTH) -> Speed:
    """Times a model and its original in turn, for two to ten seconds, on random inputs without padding.

    Args:
        model: the model.
        original: the model that it was made from, on the same device; timed in the dtype of `model`.
        rows: rows of a batch.
        length: tokens of a row, or as many as the models take.

    Returns:
        How many times as fast the model is.
    """
    original = in_dtype(original, model.dtype)  # so that the ratio is not one of data types
    with evaluating(model, original):
        dtype = str(model.dtype).removeprefix("torch.")
        return _measured((original, model), original, (rows, length), device_name(model.device), dtype=dtype)


def measure_graph_speed(graph: Session, exact: Session, model: PreTrainedModel) -> Speed:
    """Times a graph in lower precision and the same in float32 in turn, as `measure_speed` times models.

    Args:
        graph: the graph.
        exact: the graph in float32, in the same runtime.
        model: the model that they were written from.
    """
    modules = module_of(model, exact), module_of(model, graph)
    device = device_name(torch.device("cpu"))
    return _measured(
        modules, model, (ROWS, LENGTH), device, dtype=graph.precision, runtime=graph.runtime, beside="model"
    )


def _measured(
    calls: tuple[nn.Module, nn.Module], reader: PreTrainedModel, size: tuple[int, int], device: str, **said: Any
) -> Speed:
    """How many times as fast the second of two calls is on rows and tokens of a model, with what else is said of it."""
    rows, length = size[0], min(size[1], longest_input(reader))
    inputs = random_inputs(reader, rows, length)
    runs: list[Run] = [(call, [inputs]) for call in calls]
    (first,) = rounds_in_turn(runs, 1)
    times = rounds_in_turn(runs, _rounds(sum(first)), warm=0)
    return speed_of(times, rows=rows, length=length if has_length(reader) else None, device=device, **said)


def speed_of(times: Sequence[Sequence[float]], **said: Any) -> Speed:
    """The speed that the seconds of rounds, of the original and of what was made from it, amount to.

    Args:
        times: the two seconds of every round.
        said: the other fields of `Speed`: what was timed.
    """
    ratios = Spread.of([before / after for before, after in times])
    return Speed(
        ratio=ratios.median,
        low=ratios.low,
        high=ratios.high,
        rounds=len(times),
        threads=torch.get_num_threads(),
        **said,
    )


def _rounds(seconds: float) -> int:
    """The number of rounds, of which one takes so many seconds.

    Single rounds differ by a tenth on a busy machine. So there are nine, unless that takes too long.
    """
    seconds = max(seconds, 1e-3)
    return min(_MOST, max(_LEAST, int(_SECONDS / seconds), min(_ENOUGH, int(_LONGEST / seconds))))
