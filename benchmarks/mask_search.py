"""The rival of compression.py that needs no training: mask search and scaling, after Kwon et al. (2022).

"A Fast Post-Training Pruning Framework for Transformers" gives every head and every neuron a mask variable, measures
the diagonal of its Fisher information, keeps the heads and neurons of most importance within the budget, and then
scales what is kept, layer by layer, by least squares, so that each layer's output comes close to the original's. The
gradients here are of random directions of the sentence embedding, because there are no labels; the rearrangement by the
blocks of the Fisher information between both steps is left out.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import BertModel, PreTrainedModel

import collab

Batch = dict[str, Tensor]


@dataclass(frozen=True)
class Importance:
    """Fisher information of the masks.

    Attributes:
        heads: (layers, H).
        neurons: (layers, N).
    """

    heads: Tensor
    neurons: Tensor


def parts(model: BertModel) -> list[tuple[nn.Linear, nn.Linear]]:
    """W_O and W_2 of every layer."""
    return [(layer.attention.output.dense, layer.output.dense) for layer in model.encoder.layer]  # type: ignore[union-attr]


def importance(model: BertModel, batches: Sequence[Batch]) -> Importance:
    """Sums over rows of the squared gradient with respect to each mask variable, which is 1."""
    heads = model.config.num_attention_heads
    names = [projection for pair in parts(model) for projection in pair]
    sums = [torch.zeros(projection.in_features if number % 2 else heads) for number, projection in enumerate(names)]
    inputs: dict[int, Tensor] = {}

    def watch(number: int) -> Any:
        def hook(module: nn.Module, given: tuple[Tensor, ...]) -> tuple[Tensor]:
            inputs[number] = given[0].detach().requires_grad_(True) if number == 0 else given[0]
            return (inputs[number],)

        return hook

    handles = [projection.register_forward_pre_hook(watch(number)) for number, projection in enumerate(names)]
    generator = torch.Generator().manual_seed(0)
    for batch in batches:
        states, mask = model(**batch).last_hidden_state, batch["attention_mask"].unsqueeze(-1)
        embedding = (states * mask).sum(1) / mask.sum(1)  # (B, D)
        direction = torch.randn(embedding.shape, generator=generator)
        gradients = torch.autograd.grad((embedding * direction).sum(), list(inputs.values()))
        for number, gradient in zip(inputs, gradients, strict=True):
            by_row = (inputs[number].detach() * gradient * mask).sum(1)  # (B, N) or (B, K)
            if number % 2 == 0:
                by_row = by_row.unflatten(-1, (heads, -1)).sum(-1)  # (B, H)
            sums[number] += by_row.square().sum(0)
    for handle in handles:
        handle.remove()
    return Importance(torch.stack(sums[::2]), torch.stack(sums[1::2]))


def search(model: BertModel, found: Importance, flops: float, length: int = 128) -> tuple[Tensor, Tensor]:
    """The heads (layers, H) and neurons (layers, N) to keep: of all numbers of heads, the one that loses least."""
    width, head_dim = model.config.hidden_size, model.config.hidden_size // model.config.num_attention_heads
    of_head = 4 * length * width * head_dim + 2 * length**2 * head_dim
    of_neuron = 2 * length * width
    budget = flops * (found.heads.numel() * of_head + found.neurons.numel() * of_neuron)
    heads, neurons = (part.flatten().sort(descending=True) for part in (found.heads, found.neurons))
    best: tuple[float, int, int] | None = None
    for kept_heads in range(len(heads.values) + 1):
        kept_neurons = min(len(neurons.values), int((budget - kept_heads * of_head) // of_neuron))
        if kept_neurons < 0:
            break
        lost = float(heads.values[kept_heads:].sum() + neurons.values[kept_neurons:].sum())
        if best is None or lost < best[0]:
            best = lost, kept_heads, kept_neurons
    assert best is not None
    masks = []
    for part, order, count in ((found.heads, heads.indices, best[1]), (found.neurons, neurons.indices, best[2])):
        mask = torch.zeros(part.numel(), dtype=torch.bool)
        mask[order[:count]] = True
        masks.append(mask.view_as(part))
    return masks[0], masks[1]


def scale(model: BertModel, pruned: BertModel, heads: Tensor, neurons: Tensor, batches: Sequence[Batch]) -> None:
    """Scales what is kept, in place, layer by layer on the pruned model's own inputs."""
    for number, (ours, theirs) in enumerate(zip(parts(pruned), parts(model), strict=True)):
        for place in range(2):
            mask = heads[number] if place == 0 else neurons[number]  # (U,)
            projection = ours[place]
            units = projection.weight.T.unflatten(0, (len(mask), -1))  # (U, e, D)
            gram = torch.zeros(len(mask), len(mask))
            target = torch.zeros(len(mask))
            for inputs, missing in _outputs(model, pruned, projection, theirs[place], batches):
                by_unit = inputs.unflatten(-1, (len(mask), -1))  # (tokens, U, e)
                if place == 0:
                    outputs = torch.einsum("tue,ued->tud", by_unit, units)  # (tokens, H, D)
                    gram += torch.einsum("tud,tvd->uv", outputs, outputs)
                    target += torch.einsum("tud,td->u", outputs, missing)
                else:
                    gram += inputs.T @ inputs
                    target += ((inputs.T @ missing) * projection.weight.T).sum(1)
            if place == 1:
                gram = gram * (projection.weight.T @ projection.weight)
            keep = mask.nonzero().flatten()
            if not len(keep):
                continue
            kept = gram[keep][:, keep]
            kept = kept + 1e-4 * kept.diagonal().mean() * torch.eye(len(keep))
            scales = torch.linalg.solve(kept, target[keep])
            if scales.abs().max() < 10:  # as Kwon et al. do
                factors = torch.ones(len(mask))
                factors[keep] = scales
                projection.weight.data = (units * factors.view(-1, 1, 1)).flatten(0, 1).T.contiguous()


def _outputs(
    model: BertModel, pruned: BertModel, ours: nn.Linear, theirs: nn.Linear, batches: Sequence[Batch]
) -> Iterator[tuple[Tensor, Tensor]]:
    """Inputs of a projection of the pruned model, and what its output without bias would have to be, by token."""
    seen: dict[str, tuple[Tensor, Tensor]] = {}
    residual: dict[str, Tensor] = {}

    def watch(name: str) -> Any:
        def hook(module: nn.Module, given: tuple[Tensor, ...], output: Tensor) -> None:
            seen[name] = given[0], output

        return hook

    def watch_residual(name: str) -> Any:
        def hook(module: nn.Module, given: tuple[Tensor, ...]) -> None:
            residual[name] = given[1]

        return hook

    handles = []
    for name, network, projection in (("ours", pruned, ours), ("theirs", model, theirs)):
        block = next(part for part in network.modules() if getattr(part, "dense", None) is projection)
        handles.append(projection.register_forward_hook(watch(name)))
        handles.append(block.register_forward_pre_hook(watch_residual(name)))
    with torch.no_grad():
        for batch in batches:
            pruned(**batch)
            model(**batch)
            mask = batch["attention_mask"].bool()
            missing = seen["theirs"][1] + residual["theirs"] - residual["ours"] - ours.bias
            yield seen["ours"][0][mask], missing[mask]
    for handle in handles:
        handle.remove()


def masked(model: BertModel, heads: Tensor, neurons: Tensor) -> BertModel:
    """A copy whose other heads and neurons contribute nothing."""
    copied = copy.deepcopy(model)
    for number, (output, down) in enumerate(parts(copied)):
        width = output.in_features // heads.shape[1]
        output.weight.data = output.weight.data * heads[number].repeat_interleave(width)
        down.weight.data = down.weight.data * neurons[number]
    return copied


def without(converted: PreTrainedModel, pruned: BertModel, heads: Tensor, neurons: Tensor) -> PreTrainedModel:
    """The lossless conversion `converted` with the pruned model's weights and without what contributes nothing."""
    config = copy.deepcopy(converted.config)
    config.collab_feed_forward = [max(1, int(mask.sum())) for mask in neurons]
    state = converted.state_dict()
    for number, (output, down) in enumerate(parts(pruned)):
        name = f"encoder.layer.{number}"
        keep = neurons[number].nonzero().flatten() if neurons[number].any() else torch.tensor([0])
        state[f"{name}.attention.output.dense.weight"] = output.weight
        state[f"{name}.output.dense.weight"] = down.weight[:, keep]
        for part in ("weight", "bias"):
            up = f"{name}.intermediate.dense.{part}"
            state[up] = state[up][keep]
    narrower = type(converted)(config)
    narrower.load_state_dict(state)
    keep = {
        layer.name: heads[number].nonzero().flatten().tolist()
        for number, layer in enumerate(collab.inspect(narrower).layers)
    }
    return collab.prune(narrower.eval(), keep).model


def compress(
    model: BertModel, converted: PreTrainedModel, batches: Sequence[Batch], flops: float, *, scaled: bool
) -> PreTrainedModel:
    """A BERT model with a part of its arithmetic, without training."""
    keep = search(model, importance(model, batches), flops)
    pruned = masked(model, *keep)
    if scaled:
        scale(model, pruned, *keep, batches)
    return without(converted, pruned, *keep)
