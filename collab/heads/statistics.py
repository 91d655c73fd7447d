"""Statistics of the heads' attention, from one pass over rows without labels."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedModel

from ..data.batches import Batch
from ..modeling.collab_native import as_linear
from ..models.layers import AttentionLayer
from ..models.recording import LayerPass, recording
from ..models.states import eager_attention
from ..processes import processes, rank, summed

NAMES = ("attention_norm", "entropy", "attention_variance", "confidence", "output_variance")


class AttentionStatistics:
    """Sums over query tokens, for the heads of one layer."""

    def __init__(self, layer: AttentionLayer) -> None:
        heads, width = len(layer.heads), layer.value_width
        self._layer = layer
        self._tokens = 0
        self._sums = {name: torch.zeros(heads, dtype=torch.float64) for name in NAMES[:-1]}
        self._likeness = torch.zeros(heads, heads, dtype=torch.float64)
        self._context_sum = torch.zeros(heads, width, dtype=torch.float64)
        self._context_products = torch.zeros(heads, width, width, dtype=torch.float64)

    def add(self, recorded: LayerPass, batch: Batch) -> None:
        """Adds a pass, with its weights and context, in a run of the model on a batch."""
        size, heads, length, width = recorded.weights.shape
        rows = recorded.weights.float().transpose(1, 2).reshape(size * length, heads, width)  # (B·T, H, S)
        outputs = recorded.context.float().view(size * length, heads, -1)  # (B·T, H, d)
        keys = (rows > 0).any(1).sum(-1).float().cpu()  # (B·T,) those that a token sees: others weigh exactly 0
        seen = recorded.seen(batch)
        if seen is not None:
            kept = seen.flatten()
            rows, outputs, keys = rows[kept], outputs[kept], keys[kept.cpu()]
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

    def add_other_processes(self) -> None:
        """Adds the sums of the other processes, which all call this."""
        for sums in (*self._sums.values(), self._likeness, self._context_sum, self._context_products):
            summed(sums)
        self._tokens = int(summed(torch.tensor(self._tokens)))

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
    layers: Sequence[AttentionLayer],
    batches: Sequence[Batch],
    on_batch: Callable[[], None] = lambda: None,
) -> dict[str, AttentionStatistics]:
    """Runs a model over rows and sums statistics of its attention. Several processes divide the batches.

    Args:
        model: in evaluation mode.
        layers: its attention layers.
        batches: features without labels, on its device.
        on_batch: called after every batch of this process.

    Returns:
        By layer name, for layers with heads; passes that share a layer's weights are summed.
    """
    statistics = {layer.name: AttentionStatistics(layer) for layer in layers if layer.heads}
    for batch in batches[rank() :: processes()]:

        def add(recorded: LayerPass, batch: Batch = batch) -> None:
            statistics[recorded.layer.name].add(recorded, batch)

        record_attention(model, layers, batch, add)
        on_batch()
    for sums in statistics.values():
        sums.add_other_processes()
    return statistics


def record_attention(
    model: PreTrainedModel, layers: Sequence[AttentionLayer], batch: Batch, visit: Callable[[LayerPass], None]
) -> None:
    """Runs a model over a batch and calls `visit` with every pass of its layers with heads: weights and context."""
    living = [layer for layer in layers if layer.heads]
    with eager_attention(model), torch.no_grad(), recording(living, visit, "weights", "context"):
        model(**batch, output_attentions=True)  # some families give weights only when asked
