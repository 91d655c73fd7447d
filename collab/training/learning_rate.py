"""Finds the learning rate to heal a model with by trying one step."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable
from typing import Literal

import torch
from torch import nn

from .options import Optimizer

logger = logging.getLogger(__name__)

Logits = Literal["none", "rows", "tokens"]

_HIGHEST = 1e-3
_OF_LAYERS: dict[Optimizer, dict[Logits, tuple[float, float]]] = {
    "adamw": {"none": (0.0, 5e-4), "rows": (0.0, 3e-5), "tokens": (1e-4, 5e-4)},
    "muon": {"none": (0.0, 1.5e-3), "rows": (0.0, 6e-5), "tokens": (2e-4, 1e-3)},
}
"""The lowest and the highest rate to train whole layers with."""

_GROWTH: dict[Optimizer, float] = {"adamw": 10**-0.5, "muon": 1.0}
"""How many times √steps the rate of many steps is that of the first."""

_LOWEST = 2.0**-12 * _HIGHEST


def find_learning_rate(
    parameters: Iterable[nn.Parameter],
    backward: Callable[[], None],
    loss: Callable[[], float],
    steps: int = 1,
    logits: Logits = "none",
    optimizer: Optimizer = "adamw",
) -> float:
    """Starts from 1e-3 and halves it until Adam's first step does not raise the loss.

    It starts lower where every rate above would end at the highest that is allowed.

    The size of Adam's steps does not depend on the gradient: the first one changes every weight by the learning rate,
    in the direction of the gradient's sign. The closer a model is to its teacher, the smaller the step that brings it
    closer: 1e-3 for the demo checkpoint at R = 64, and 1.6e-5 for an STS-B model with half of its parameters. A model
    that is far off gains by larger steps too, but only at first: without 60 % of its heads, an SST-2 model gains by a
    step of 8e-3 and trains best at 1e-3.

    In whole layers, the steps of many weights add up in the first step, but not over many steps. What serves `steps` of
    them is then larger by √(steps/10), up to 5e-4: for half of the demo checkpoint's arithmetic and 200 steps, 5e-4,
    and not the 1.25e-4 of the first step; over more steps, 1e-3 ends farther from the original
    (docs/benchmarks/unseen.md). Where the loss has the divergence of a row's logits, which few rows decide, it is at
    most 3e-5: a third of an SST-2 model's arithmetic ends at a divergence of 0.85 of that before with 1e-4, of 0.56
    with 3e-5, and above it with 5e-4 (docs/benchmarks/compression.md). Where every token has logits, the first step
    raises their divergence at any rate if the model is close to its teacher, and 1e-4 lowers it all the same
    (docs/benchmarks/healing.md).

    Muon's steps are a fifth as long as Adam's first one, so the rate for many of them is larger by √steps, and the
    limits are two to three times those of Adam: over 190 steps of 128 rows, 1.5e-3 and 2e-3 serve half of the demo
    checkpoint's arithmetic alike, and 3e-3 less well (docs/benchmarks/unseen.md).

    Args:
        parameters: parameters to train; their values are restored.
        backward: adds the gradients on some rows to the parameters; they are cleared afterwards.
        loss: returns the loss on other rows.
        steps: of the training, if whole layers are trained.
        logits: what the loss has a divergence of logits of.
        optimizer: of the training, if whole layers are trained.

    Returns:
        A learning rate from 2⁻¹² to 1 times 1e-3; of whole layers within their limits.
    """
    trained = list(parameters)
    backward()
    initial = [parameter.detach().clone() for parameter in trained]
    lowest, highest = _OF_LAYERS[optimizer][logits] if steps > 1 else (0.0, _HIGHEST)
    growth = max(1.0, _GROWTH[optimizer] * math.sqrt(steps))
    rate = _HIGHEST
    while rate / 2 * growth >= highest:  # what comes of it is the highest all the same
        rate /= 2
    try:
        with torch.no_grad():
            before = loss()
            while rate > max(_LOWEST, lowest / growth):  # below it, the lowest is taken
                for parameter, start in zip(trained, initial, strict=True):
                    if parameter.grad is not None:
                        parameter.copy_(start - rate * parameter.grad.sign())
                if loss() <= before:
                    break
                rate /= 2
    finally:
        with torch.no_grad():
            for parameter, start in zip(trained, initial, strict=True):
                parameter.copy_(start)
                parameter.grad = None
    rate = max(lowest, min(highest, rate * growth))
    logger.info("Learning rate %.1e.", rate)
    return rate
