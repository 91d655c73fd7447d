"""How fast a model can be healed, found by trying one step."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

import torch
from torch import nn

logger = logging.getLogger(__name__)

_MIDDLE = 1e-3
_LOWEST, _HIGHEST = -12, 5


def find_learning_rate(
    parameters: Iterable[nn.Parameter], backward: Callable[[], None], loss: Callable[[], float]
) -> float:
    """The highest learning rate, of 1e-3 times powers of two, at which Adam's first step does not raise the loss.

    Adam's steps have one size whatever the gradient: in the beginning, the learning rate for every weight, in the
    direction of the gradient's sign. The closer a model is to its teacher, the smaller the step that brings it closer:
    1e-3 for the demo checkpoint at R = 64, and 1.6e-5 for a model for STS-B with half of its parameters.

    Args:
        parameters: what is trained; as they were, afterwards.
        backward: adds the gradients of some rows to the parameters'; there are none afterwards.
        loss: of other rows.

    Returns:
        From 2⁻¹² to 2⁵ times 1e-3.
    """
    trained = list(parameters)
    backward()
    initial = [parameter.detach().clone() for parameter in trained]
    with torch.no_grad():
        before = loss()

        def gains(octave: int) -> bool:
            for parameter, start in zip(trained, initial, strict=True):
                if parameter.grad is not None:
                    parameter.copy_(start - _MIDDLE * 2.0**octave * parameter.grad.sign())
            return loss() <= before

        octave = 0
        try:
            if gains(octave):
                while octave < _HIGHEST and gains(octave + 1):
                    octave += 1
            else:
                octave -= 1
                while octave > _LOWEST and not gains(octave):
                    octave -= 1
        finally:
            for parameter, start in zip(trained, initial, strict=True):
                parameter.copy_(start)
                parameter.grad = None
    rate = _MIDDLE * 2.0**octave
    logger.info("Learning rate %.1e: the highest at which one step does not raise the loss.", rate)
    return rate
