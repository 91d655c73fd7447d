"""Linear layers of few rows, as while a text is written: their weights are read for a token or a beam's, and no more.

This file is copied into every exported model; it imports only torch and its own folder.
"""

import time
from functools import cache, partial
from statistics import median

import torch
from torch import Tensor, nn
from torch.nn import functional

from .collab_kernel import is_recorded

FEW_ROWS = 5
"""Rows up to which two products with columns took less time than one with rows, on an AMD processor with torch 2.13."""

SMALL = 2**15
"""Weights up to which a layer takes the time of its calls, however it is computed."""

LARGE = 2**23
"""Parameters from which a model does not stay in a processor's cache from one step to the next."""


def compute_few_rows_faster(model: nn.Module) -> None:
    """Has the linear layers of a model that writes compute few rows by `linear_of_few_rows`, if the model is large."""
    if sum(parameter.numel() for parameter in model.parameters()) < LARGE:
        return
    for layer in model.modules():
        if type(layer) is nn.Linear and layer.weight.numel() >= SMALL and layer.out_features % 2 == 0:
            layer.forward = partial(linear_of_few_rows, layer)  # type: ignore[method-assign]


def linear_of_few_rows(layer: nn.Linear, states: Tensor) -> Tensor:
    """What a linear layer makes of states (…, D), equal within rounding to its own forward.

    A product of a row and a matrix reads the matrix by one thread, and on some processors far below the speed of the
    memory. Two products, of the halves of the matrix with columns, do neither; see `_halves_are_faster`. Anything but
    few rows in float32 without gradients on a CPU is left to the layer's own forward.
    """
    weight, width = layer.weight, states.shape[-1]
    if (
        torch.is_grad_enabled()
        or states.device.type != "cpu"
        or states.dtype != torch.float32
        or type(weight) is not nn.Parameter  # but one that is quantized, say
        or weight.dtype != torch.float32
        or not 0 < states.numel() <= FEW_ROWS * width
        or is_recorded()
        or not weight.is_contiguous()
        or torch.is_autocast_enabled("cpu")
        or not _halves_are_faster()
    ):
        return nn.Linear.forward(layer, states)
    return _in_halves(states, weight, layer.bias)


def _in_halves(states: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """states Wᵀ + b, (…, N), from the products of either half of W, (N, D), with the transposed states."""
    outputs, width = weight.shape
    halves = weight.view(2, -1, width)  # (2, N/2, D)
    columns = states.reshape(1, -1, width).expand(2, -1, -1).mT  # (2, D, rows)
    product = torch.bmm(halves, columns) if bias is None else torch.baddbmm(bias.view(2, -1, 1), halves, columns)
    return product.view(outputs, -1).T.reshape(*states.shape[:-1], outputs)


@cache
def _halves_are_faster() -> bool:
    """Whether `_in_halves` takes less time for weights out of this machine's memory, by a fifth at least.

    Measured once, in about 50 milliseconds, with more weights than a processor's cache holds.
    """
    weights, row = torch.ones(16, 1024, 1024), torch.ones(1, 1024)
    taken: tuple[list[float], list[float]] = [], []
    for _ in range(3):
        for times, compute in zip(taken, (functional.linear, _in_halves), strict=True):
            for weight in weights:
                start = time.perf_counter()
                compute(row, weight)
                times.append(time.perf_counter() - start)
    whole, halves = map(median, taken)
    return halves < 0.8 * whole
