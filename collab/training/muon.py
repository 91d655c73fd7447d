"""Muon: momentum of which all singular values count alike (Jordan et al. 2024)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ..models.sharded import whole

_POLYNOMIAL = 3.4445, -4.7750, 2.0315
"""Coefficients of x, x³ and x⁵, which bring singular values from 0 to 1 close to 1 in few iterations."""

_ITERATIONS = 3
"""Five serve no better (docs/benchmarks/unseen.md)."""

_SIZE = 0.2
"""The root mean square of a step, relative to the learning rate: about that of Adam's (Liu et al. 2025, equation 4)."""

_NOISE = 1e-7
"""Added to the norm of a gradient, so that one that is nothing but rounding errors changes little."""


class Muon(Optimizer):
    """Changes a matrix in the direction of its momentum, with singular values that are made about equal.

    Adam scales every weight by itself, which leaves the few directions of a matrix that most of its gradient is in to
    decide its steps. A vector is a matrix of one row here; of a tensor with more dimensions all but the first are
    columns.

    Args:
        params: parameters, or groups of them.
        lr: learning rate.
        weight_decay: part of the weights that a step takes away, relative to the learning rate.
        momentum: part of the sum of gradients that is left after a step.
        dtype: dtype to compute the directions in; bfloat16 is precise enough where it is fast.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        *,
        weight_decay: float = 0.0,
        momentum: float = 0.9,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})
        self._dtype = dtype

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """One step. Processes that share the parameters all call it."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["momentum"] = torch.zeros_like(parameter)
                state["momentum"].mul_(group["momentum"]).add_(parameter.grad)
                ahead = parameter.grad.add(state["momentum"], alpha=group["momentum"])
                change = self._direction(whole(ahead)).mul_(-group["lr"] * _SIZE)
                parameter.mul_(1 - group["lr"] * group["weight_decay"]).add_(_shared_as(parameter, change))

    def _direction(self, gradient: Tensor) -> Tensor:
        """A gradient with about equal singular values, by Newton-Schulz iterations; root mean square about 1."""
        matrix = gradient.reshape(1, -1) if gradient.ndim < 2 else gradient.flatten(1)
        wide = matrix.T if matrix.shape[0] > matrix.shape[1] else matrix  # (n, m), n ≤ m
        wide = wide.to(self._dtype).contiguous()
        wide = wide / (wide.norm() + _NOISE)
        first, third, fifth = _POLYNOMIAL
        for _ in range(_ITERATIONS):
            square = wide @ wide.T  # (n, n)
            factor = torch.addmm(square, square, square, beta=third, alpha=fifth)
            wide = torch.addmm(wide, factor, wide, beta=first)
        wide = wide.to(gradient.dtype) * max(wide.shape) ** 0.5
        return (wide.T if matrix.shape[0] > matrix.shape[1] else wide).reshape(gradient.shape)


def _shared_as(parameter: Tensor, tensor: Tensor) -> Tensor:
    """A whole tensor, divided among the processes as a parameter is."""
    if not hasattr(parameter, "full_tensor"):
        return tensor
    from torch.distributed.tensor import distribute_tensor

    shared: Any = parameter
    return distribute_tensor(tensor, shared.device_mesh, shared.placements)
