"""The speed of a model beside the one that it was made from, in a few seconds."""

from __future__ import annotations

import torch
from transformers import PreTrainedModel

from ..device import device_name
from ..models.inputs import has_length, longest_input, random_inputs
from ..models.states import evaluating
from ..steps.measurement import Speed
from .timing import Run, Spread, rounds_in_turn

_ROWS, _LENGTH = 8, 128
_SECONDS = 1.5
_MOST = 31


def measure_speed(model: PreTrainedModel, original: PreTrainedModel) -> Speed:
    """Times a model and its original in turn, for about two seconds, on random inputs without padding.

    Args:
        model: the model.
        original: the model that it was made from, on the same device.

    Returns:
        How many times as fast the model is.
    """
    length = min(_LENGTH, longest_input(original))
    inputs = random_inputs(original, _ROWS, length)
    runs: list[Run] = [(original, [inputs]), (model, [inputs])]
    with evaluating(model, original):
        first = rounds_in_turn(runs, 1)
        rounds = int(_SECONDS / max(1e-3, sum(first[0])))
        times = rounds_in_turn(runs, min(_MOST, max(2, rounds)), warm=0) if rounds else first
    ratios = Spread.of([before / after for before, after in times])
    return Speed(
        ratio=ratios.median,
        low=ratios.low,
        high=ratios.high,
        rows=_ROWS,
        length=length if has_length(original) else None,
        device=device_name(model.device),
        threads=torch.get_num_threads(),
        dtype=str(model.dtype).removeprefix("torch."),
    )
