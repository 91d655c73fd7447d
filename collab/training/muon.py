"""Muon: momentum of which all singular values count alike (Jordan et al. 2024)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..data.batches import Batch
from ..models.sharded import whole
from ..models.states import evaluating

_POLYNOMIAL = 3.4445, -4.7750, 2.0315
"""Coefficients of x, x³ and x⁵, which bring singular values from 0 to 1 close to 1 in few iterations."""

_ITERATIONS = 3
"""Five serve no better (docs/benchmarks/unseen.md)."""

_SIZE = 0.2
"""The root mean square of a step, relative to the learning rate: about that of Adam's (Liu et al. 2025, equation 4)."""

_NOISE = 1e-7
"""Added to the norm of a gradient, so that one that is nothing but rounding errors changes little."""

_POWER = 0.35
_DAMPING = 0.1
"""Of `input_scales`; powers of 0.25 to 0.5 serve about alike, and less damping worse (docs/benchmarks/unseen.md)."""

_WIDEST = 1024
"""The most inputs that a layer has a whole matrix of scales for."""


class Muon(Optimizer):
    """Changes a matrix in the direction of its momentum, with singular values that are made about equal.

    Adam scales every weight by itself, which leaves the few directions of a matrix that most of its gradient is in to
    decide its steps. A vector is a matrix of one row here; of a tensor with more dimensions all but the first are
    columns.

    With scales S of its inputs, a weight changes in the direction orthogonal(G S) S, which is the steepest where a
    change is measured by what it does to outputs: directions in which inputs are large change less.

    Args:
        params: parameters, or groups of them.
        lr: learning rate.
        weight_decay: part of the weights that a step takes away, relative to the learning rate.
        momentum: part of the sum of gradients that is left after a step.
        dtype: dtype to compute the directions in; bfloat16 is precise enough where it is fast.
        scales: of the inputs of weights, of linear layers, that have any (`input_scales`).
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        *,
        weight_decay: float = 0.0,
        momentum: float = 0.9,
        dtype: torch.dtype = torch.float32,
        scales: Mapping[Tensor, Tensor] | None = None,
    ) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})
        self._dtype = dtype
        self._scales = {weight: _needed(scale, weight).to(dtype) for weight, scale in (scales or {}).items()}

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
                ahead = whole(parameter.grad.add(state["momentum"], alpha=group["momentum"]))
                matrix = ahead.reshape(1, -1) if ahead.ndim < 2 else ahead.flatten(1)
                if group["weight_decay"]:
                    parameter.mul_(1 - group["lr"] * group["weight_decay"])
                change = self._change(matrix.to(self._dtype), self._scales.get(parameter))
                change = _shared_as(parameter, change.to(parameter.dtype).reshape(parameter.shape))
                parameter.add_(change, alpha=-group["lr"] * _SIZE * max(matrix.shape) ** 0.5)

    def _change(self, matrix: Tensor, scale: Tensor | None) -> Tensor:
        """The direction of a change; its singular values are about 1 where no inputs are scaled."""
        if scale is not None and scale.ndim == 1:
            return _orthogonal(matrix * scale) * scale
        return _orthogonal(matrix, scale)


def _needed(scale: Tensor, weight: Tensor) -> Tensor:
    """What `_orthogonal` takes of the scales of a weight's inputs: their square if the weight has more than outputs."""
    return scale @ scale if scale.ndim == 2 and weight.shape[0] <= weight.shape[1] else scale


def _orthogonal(matrix: Tensor, scale: Tensor | None = None) -> Tensor:
    """A matrix with about equal singular values, about 1, by Newton-Schulz iterations.

    Each multiplies Y by a polynomial of Y Yᵀ, so all of them together multiply it by a polynomial of the first Y Yᵀ:
    products of small matrices, and two of the whole one.

    Args:
        matrix: Y, (N, K).
        scale: of its inputs, S, symmetric, (K, K), to return orthogonal(Y S) S; S² if N ≤ K.
    """
    wide = matrix.shape[0] <= matrix.shape[1]
    if wide:
        scaled = matrix if scale is None else matrix @ scale  # Y S², (N, K)
        square = scaled @ matrix.T  # (N, N)
    else:
        square = matrix.T @ matrix  # (K, K)
        square = square if scale is None else scale @ square @ scale
    size = square.diagonal().float().sum().clamp(min=0).sqrt() + _NOISE  # the norm of Y S
    factor = _iterated(square / size.square())
    if wide:
        return factor @ (scaled / size)
    return (matrix / size) @ (factor if scale is None else scale @ factor @ scale)


def _iterated(square: Tensor) -> Tensor:
    """What all iterations together multiply a matrix Y by, given Y Yᵀ or Yᵀ Y, (n, n); (n, n)."""
    factor = product = _factor(square)
    for _ in range(_ITERATIONS - 1):
        square = square @ factor @ factor
        factor = _factor(square)
        product = product @ factor
    return product


def _factor(square: Tensor) -> Tensor:
    """What an iteration multiplies a matrix Y by, given Y Yᵀ or Yᵀ Y, (n, n); (n, n)."""
    first, third, fifth = _POLYNOMIAL
    factor = torch.addmm(square, square, square, beta=third, alpha=fifth)
    factor.diagonal().add_(first)
    return factor


@torch.no_grad()
def input_scales(model: nn.Module, batches: Iterable[Batch]) -> dict[Tensor, Tensor]:
    """Scales of the inputs of the linear layers whose weights are trained, for `Muon`.

    With C = E[x xᵀ] of a layer's inputs x, divided by the mean of its diagonal, they are (C + 0.1)^-0.35. Inputs of a
    transformer are far from alike in all directions: two of the 384 have a hundred times the mean square of the others
    in the demo checkpoint, and without scales these are what limits the learning rate.

    Args:
        model: the model; it is run as it is.
        batches: inputs of the model, of which padding counts too.

    Returns:
        By weight, (N, K): shape (K, K); of weights with more than two inputs for an output, or more than 1,024, only
        the inputs' own scales, (K,). Layers that the model does not call have none.
    """
    weights = {
        layer: layer.weight for layer in model.modules() if isinstance(layer, nn.Linear) and layer.weight.requires_grad
    }
    moments: dict[nn.Linear, Tensor] = {}

    def add(layer: Any, given: tuple[Tensor, ...]) -> None:
        if not given:
            return
        outputs, inputs = weights[layer].shape
        states = given[0].reshape(-1, inputs).float()  # (tokens, K)
        with torch.autocast(states.device.type, enabled=False):  # it would round the sums
            moment = states.T @ states if inputs <= min(2 * outputs, _WIDEST) else states.square().sum(0)
        moments[layer] = moments[layer] + moment if layer in moments else moment

    with contextlib.ExitStack() as hooks, evaluating(model):
        for layer in weights:
            hooks.enter_context(layer.register_forward_pre_hook(add))
        for batch in batches:
            model(**batch)
    scales = {weights[layer]: _scale(moment) for layer, moment in moments.items()}
    return {weight: scale for weight, scale in scales.items() if scale is not None}


def _scale(moment: Tensor) -> Tensor | None:
    """The scale of inputs with a second moment (K, K), or its diagonal (K,); None where they are 0 or not finite."""
    mean = (moment.diagonal() if moment.ndim == 2 else moment).mean()
    if not 0 < float(mean) < float("inf"):
        return None
    moment = moment / mean
    if moment.ndim == 1:
        return (moment + _DAMPING) ** -_POWER
    values, vectors = torch.linalg.eigh(moment.double())  # in float32 it may not converge
    return ((vectors * (values.clamp(min=0) + _DAMPING) ** -_POWER) @ vectors.T).float()


def _shared_as(parameter: Tensor, tensor: Tensor) -> Tensor:
    """A whole tensor, divided among the processes as a parameter is."""
    if not hasattr(parameter, "full_tensor"):
        return tensor
    from torch.distributed.tensor import distribute_tensor

    shared: Any = parameter
    return distribute_tensor(tensor, shared.device_mesh, shared.placements)
