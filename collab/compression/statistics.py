"""Statistics on real rows: the inputs of a model's projections, and what errors in them do to what it returns.

Notation: D hidden size, K = H·d width of the heads' outputs, N neurons of a feed-forward layer.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ..data.batches import Batch
from ..errors import CalibrationError
from ..modeling.collab_native import as_linear
from ..models.inputs import on_device
from ..models.outputs import outputs_of
from ..models.padding import output_mask, query_mask, without_padding
from ..models.states import evaluating, frozen
from ..processes import dealt, gathered, rank, seed_of_batch, summed
from ..progress import Progress, no_progress
from .blocks import Block

_LEAST = 1e-12  # the mean square of activations that are all zero


class ProjectionStatistics:
    """Sums over tokens of the inputs of a linear layer, and of the gradients at its output.

    A bias can take over the mean of inputs that a smaller layer lacks. Without a bias the mean counts as 0 here, and
    the covariance is of the inputs as they are.

    Args:
        layer: the linear layer.
    """

    def __init__(self, layer: nn.Linear) -> None:
        zeros = functools.partial(layer.weight.new_zeros, dtype=torch.float64)
        self._sum = zeros(layer.in_features)
        self._products = zeros(layer.in_features, layer.in_features)
        self._gradients = zeros(layer.out_features, layer.out_features)
        self._centred = layer.bias is not None
        self.tokens = 0

    def add(self, inputs: Tensor, gradients: Tensor) -> None:
        """Adds the inputs, (tokens, in), and the gradients at the outputs, (tokens, out)."""
        total = inputs.sum(0, dtype=torch.float64)
        mean = total / len(inputs)
        centred = inputs - mean.float()  # products of a large mean would hide the spread in float32
        self._sum += total
        self._products += (centred.T @ centred).double().addr_(mean, mean, alpha=len(inputs))
        self._gradients += gradients.T @ gradients
        self.tokens += len(inputs)

    def add_other_processes(self, owner: int) -> None:
        """Adds what the other processes have, which all call this, in the one that owns the layer."""
        self.tokens = sum(gathered(self.tokens))
        for sums in (self._sum, self._products, self._gradients):
            summed(sums, owner)
        # As precise as what was added up, which hides its order; the other processes have only parts of the sums.
        size = None if owner == rank() else 0
        self._products = self._products.addr_(self.mean, self._sum, alpha=-1)[:size].float()
        self._gradients = self._gradients[:size].float()

    @property
    def mean(self) -> Tensor:
        """Mean input, (in,), float64; 0 if the layer has no bias."""
        return self._sum / self.tokens * self._centred

    @property
    def covariance(self) -> Tensor:
        """Covariance of the inputs, (in, in), float64; about 0 if the layer has no bias."""
        return self._products.double() / self.tokens

    @property
    def metric_root(self) -> Tensor:
        """G^{1/2} with G the mean product of the gradients, (out, out), float64.

        The directions of the gradients are random ones of what the model returns, so ‖e G^{1/2}‖² is its expected
        squared change when an output of the layer changes by e.
        """
        values, vectors = torch.linalg.eigh(self._gradients.double() / self.tokens)
        return (vectors * values.clamp(min=0).sqrt()) @ vectors.T


def collect(
    model: PreTrainedModel,
    blocks: Sequence[Block],
    batches: Sequence[Batch],
    seed: int,
    owner: Mapping[str, int],
    progress: Progress = no_progress,
) -> dict[str, ProjectionStatistics]:
    """Statistics of every output projection W_O and every W_2, by module name, from one pass forward and back.

    Several processes, which all call this, divide the batches. What is not of the tokens' number is then only in the
    process that owns a projection.

    Args:
        model: the collaborative model, which is not changed.
        blocks: its layers.
        batches: rows.
        seed: random seed of the directions in the output.
        owner: the process that owns each projection, by module name.
        progress: called after every batch.

    Raises:
        CalibrationError: if an activation is NaN or infinite, or the model returned nothing that depends on the layers.
    """
    kinds = {name: block.stack for block in blocks for name in block.outputs}
    layers = {name: model.get_submodule(name) for name in kinds}
    statistics = {name: ProjectionStatistics(as_linear(layer)) for name, layer in layers.items()}
    recorded: list[tuple[str, Tensor, Tensor]] = []

    def record(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            if not output.requires_grad:
                output.requires_grad_(True)  # the graph starts at the first projection
            recorded.append((name, inputs[0].detach(), output))

        return hook

    generator = torch.Generator()
    own = list(dealt(batches))
    progress("measuring layers", 0, len(own))
    with contextlib.ExitStack() as hooks, evaluating(model), frozen(model), torch.enable_grad():
        for name, layer in layers.items():
            hooks.enter_context(layer.register_forward_hook(record(name)))
        for done, (number, batch, _) in enumerate(own, 1):
            generator.manual_seed(seed_of_batch(seed, number))
            recorded.clear()
            moved = on_device(batch, model)
            returned = outputs_of(model, model(**moved), output_mask(moved))
            if not returned:
                raise CalibrationError("The model returned no answers in calibration.")
            objective = torch.stack([(each.values * each.direction(generator)).sum() for each in returned]).sum()
            gradients = torch.autograd.grad(objective, [output for _, _, output in recorded], allow_unused=True)
            for (name, inputs, output), gradient in zip(recorded, gradients, strict=True):
                gradient = torch.zeros_like(output) if gradient is None else gradient
                mask = query_mask(moved, kinds[name])
                rows = (without_padding(tensor.float(), mask).flatten(0, -2) for tensor in (inputs, gradient))
                statistics[name].add(*rows)
            progress("measuring layers", done, len(own))
    for name, sums in statistics.items():
        sums.add_other_processes(owner[name])
        if owner[name] != rank():
            continue
        if not sums.tokens or not all(bool(value.isfinite().all()) for value in (sums.mean, sums.covariance)):
            raise CalibrationError(
                f"Activations of {name} are NaN or infinite, or it was never called. Check the model in its dtype, or "
                "use other data."
            )
    return statistics


def ridged(matrix: Tensor, ridge: float) -> Tensor:
    """A matrix of second moments with so many times the mean of its diagonal added to that.

    It is invertible where activations are constant or zero, or there are fewer tokens than activations.
    """
    mean = matrix.diagonal().mean().clamp(min=_LEAST)
    return matrix + ridge * mean * torch.eye(len(matrix)).to(matrix)
