"""Statistics of the heads' attention, from one pass over rows without labels."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedModel

from ..data.features import Batch
from ..modeling.collab_attention import as_linear
from ..models.inputs import query_mask
from ..models.layers import HeadLayer
from ..models.states import eager_attention

NAMES = ("attention_norm", "entropy", "attention_variance", "confidence", "output_variance")


class AttentionStatistics:
    """Sums over query tokens, for the heads of one layer."""

    def __init__(self, layer: HeadLayer) -> None:
        heads, width = len(layer.heads), layer.head_dim
        self._layer = layer
        self._tokens = 0
        self._sums = {name: torch.zeros(heads, dtype=torch.float64) for name in NAMES[:-1]}
        self._likeness = torch.zeros(heads, heads, dtype=torch.float64)
        self._context_sum = torch.zeros(heads, width, dtype=torch.float64)
        self._context_products = torch.zeros(heads, width, width, dtype=torch.float64)

    def add(self, weights: Tensor, context: Tensor, mask: Tensor | None) -> None:
        """Adds a pass.

        Args:
            weights: attention weights, (B, H, T, S).
            context: input of the output projection, (B, T, H·d).
            mask: 1 for tokens, 0 for padding, (B, T), or None.
        """
        batch, heads, length, seen = weights.shape
        rows = weights.float().transpose(1, 2).reshape(batch * length, heads, seen)  # (B·T, H, S)
        outputs = context.float().view(batch * length, heads, -1)  # (B·T, H, d)
        keys = torch.full((batch * length,), float(seen))
        if mask is not None and mask.numel() == batch * length:
            kept = mask.reshape(-1).bool()
            keys = mask.reshape(batch, length).sum(1).repeat_interleave(length)[kept].float().cpu()
            rows, outputs = rows[kept], outputs[kept]
        squares = rows.square().sum(-1).double().cpu()  # (N, H)
        self._tokens += len(rows)
        self._sums["attention_norm"] += squares.sqrt().sum(0)
        self._sums["entropy"] += torch.special.entr(rows).sum(-1).double().sum(0).cpu()
        self._sums["attention_variance"] += (squares * keys.unsqueeze(1) - 1).sum(0)
        self._sums["confidence"] += rows.amax(-1).double().sum(0).cpu()
        unit = functional.normalize(rows, dim=-1)
        self._likeness += (unit @ unit.mT).sum(0).double().cpu()
        by_head = outputs.double().transpose(0, 1).cpu()  # (H, N, d)
        self._context_sum += by_head.sum(1)
        self._context_products += by_head.mT @ by_head

    def scores(self) -> dict[str, Tensor]:
        """Means over the tokens of each of `NAMES`, (H,) float64."""
        means = {name: total / self._tokens for name, total in self._sums.items()}
        mean = self._context_sum / self._tokens
        covariance = self._context_products / self._tokens - mean.unsqueeze(2) * mean.unsqueeze(1)  # (H, d, d)
        output = as_linear(self._layer.output).weight.detach().double().cpu()
        by_head = output.unflatten(1, (len(self._layer.heads), -1)).transpose(0, 1)  # (H, D, d)
        variance = ((by_head @ covariance) * by_head).sum((1, 2))
        return {**means, "output_variance": variance.clamp(min=0)}

    def likeness(self) -> Tensor:
        """The mean cosine of every two heads' attention weights for the same token, (H, H)."""
        return self._likeness / self._tokens


def attention_statistics(
    model: PreTrainedModel,
    layers: Sequence[HeadLayer],
    batches: Sequence[Batch],
    on_batch: Callable[[], None] = lambda: None,
) -> dict[str, AttentionStatistics]:
    """Runs a model over rows and sums statistics of its attention.

    Args:
        model: in evaluation mode.
        layers: its attention layers.
        batches: features without labels, on its device.
        on_batch: called after every batch.

    Returns:
        By layer name, for layers with heads; passes that share a layer's weights are summed.
    """
    statistics = {layer.name: AttentionStatistics(layer) for layer in layers if layer.heads}
    kinds = {layer.name: layer.kind for layer in layers}
    for batch in batches:
        for name, passes in attention_of(model, layers, batch).items():
            for weights, context in passes:
                statistics[name].add(weights, context, query_mask(batch, kinds[name]))
        on_batch()
    return statistics


def attention_of(
    model: PreTrainedModel, layers: Sequence[HeadLayer], batch: Batch
) -> dict[str, list[tuple[Tensor, Tensor]]]:
    """Runs a model over a batch and records its attention.

    Returns:
        By layer name, for layers with heads, one entry per pass: weights (B, H, T, S), and the input of the output
        projection, (B, T, H·d).
    """
    contexts: dict[str, list[Tensor]] = {layer.name: [] for layer in layers if layer.heads}
    weights: dict[str, list[Tensor]] = {name: [] for name in contexts}

    def keep_context(name: str) -> Callable[..., None]:
        return lambda module, args: contexts[name].append(args[0])

    def keep_weights(layer: HeadLayer) -> Callable[..., None]:
        return lambda module, args, output: weights[layer.name].append(output[layer.weights_index])

    living = [layer for layer in layers if layer.heads]
    handles = [layer.output.register_forward_pre_hook(keep_context(layer.name)) for layer in living]
    handles += [layer.module.register_forward_hook(keep_weights(layer)) for layer in living]
    try:
        with eager_attention(model), torch.no_grad():
            model(**batch, output_attentions=True)  # some families give weights only when asked
    finally:
        for handle in handles:
            handle.remove()
    return {name: list(zip(weights[name], contexts[name], strict=True)) for name in contexts}
