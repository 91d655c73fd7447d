"""Recording the inputs and outputs of a native model's attention layers, for refinement."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..data.batches import Batch
from ..models.inputs import on_device
from ..models.layers import native_layers
from ..models.recording import LayerPass, recording
from ..processes import processes, rank
from .options import RefineOptions

_TOKENS = 512  # tokens that the original runs on at a time, unless a single row has more
_CHUNK = 4  # steps whose recordings are kept in memory
_TIMES = 3  # uses of each recording: running the original takes most of the time


@dataclass(frozen=True)
class LayerExample:
    """One pass of a layer of the original, in float32, to train its conversion on.

    Attributes:
        queries: x, (B, T, D_q).
        keys: y, (B, S, D_k).
        values: (B, S, K).
        context: input of W_O, (B, T, K).
        mask: attention mask as passed to the layer.
        position_bias: (1 or B, H, T, S), or None.
        positions: the positions as passed to the layer; None for most.
        is_causal: as passed to the layer; None if it was not.
        seen: (B, T, 1), True for queries that are not padding; None without padding.
        number: index of the pass, for a layer that the model applies several times.
    """

    queries: Tensor
    keys: Tensor
    values: Tensor
    context: Tensor
    mask: Any
    position_bias: Tensor | None
    positions: Any
    is_causal: bool | None
    seen: Tensor | None
    number: int

    @classmethod
    def of(cls, recorded: LayerPass, batch: Batch, number: int) -> LayerExample:
        """The example of a pass in a run of the model on a batch."""
        mask, bias = recorded.scores_input()
        seen = recorded.seen(batch)
        return cls(
            recorded.queries.float(),
            recorded.keys.float(),
            recorded.values.float(),
            recorded.context.float(),
            mask.float() if isinstance(mask, Tensor) and mask.is_floating_point() else mask,
            None if bias is None else bias.float(),
            recorded.positions,
            recorded.given.get("is_causal"),
            None if seen is None or bool(seen.all()) else seen.unsqueeze(-1),
            number,
        )


Passes = list[tuple[str, LayerExample]]
"""Passes of layers, with the names of the layers, in the order of the model."""

Visit = Callable[[str, LayerExample], None]


class StopForward(Exception):  # noqa: N818  # nothing went wrong
    """Ends a run of the original after its last attention layer."""


class Observer:
    """Runs a native model and shows every pass of its attention layers.

    Args:
        model: a native model, in evaluation mode.

    Attributes:
        layers: its attention layers by module name.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self.layers = native_layers(model)
        self._model = model
        self._passes: dict[frozenset[str], int] = {}  # number in a run, by the names in the batch

    def run(self, batch: Batch, wanted: Container[str], visit: Visit) -> None:
        """Runs the model on a batch up to its last attention layer, and shows every pass of the layers wanted."""
        moved = on_device(batch, self._model)
        names, numbers = frozenset(batch), Counter[str]()

        def show(recorded: LayerPass) -> None:
            name = recorded.layer.name
            if name in wanted:
                visit(name, LayerExample.of(recorded, moved, numbers[name]))
            numbers[name] += 1
            if numbers.total() == self._passes.get(names):
                raise StopForward

        passes = recording(self.layers.values(), show, "values", "context")
        with torch.no_grad(), contextlib.suppress(StopForward), passes:
            self._model(**moved)
        self._passes[names] = numbers.total()


def recordings(
    watch: Observer, names: Container[str], batches: Sequence[Batch], options: RefineOptions
) -> Iterator[tuple[Batch, Passes]]:
    """Endless passes of the original's layers on batches in random order.

    The passes of the batches of a few steps are kept at a time, and each is used several times. Several processes draw
    the same batches, and each runs the original on its rows of them.

    Args:
        watch: runs the original.
        names: the layers whose passes are recorded.
        batches: small batches; see `micro_batches`.
        options: settings of the refinement.
    """
    generator = torch.Generator().manual_seed(options.seed)
    drawn = _in_random_order(batches, generator)
    while True:
        chunk: list[tuple[Batch, Passes]] = []
        rows = tokens = 0
        while rows < _CHUNK * options.rows and tokens < _CHUNK * options.tokens:
            batch = next(drawn)
            chunk.append((batch, [each for part in own_rows([batch]) for each in _record(watch, names, part)]))
            rows, tokens = rows + count_rows(batch), tokens + count_tokens(batch)
        for _ in range(_TIMES):
            for place in torch.randperm(len(chunk), generator=generator).tolist():
                yield chunk[place]


def _record(watch: Observer, names: Container[str], batch: Batch) -> Passes:
    passes: Passes = []
    watch.run(batch, names, lambda name, example: passes.append((name, example)))
    return passes


def _in_random_order(batches: Sequence[Batch], generator: torch.Generator) -> Iterator[Batch]:
    """Endless batches in random order, all of them in every round."""
    while True:
        for place in torch.randperm(len(batches), generator=generator).tolist():
            yield batches[place]


def micro_batches(batches: Sequence[Batch]) -> list[Batch]:
    """Splits batches by rows to save memory; batches that cannot be split are kept."""
    smaller: list[Batch] = []
    for batch in batches:
        rows = count_rows(batch)
        size = max(1, _TOKENS * rows // count_tokens(batch)) if _is_text(batch) else 1
        if size >= rows or any(len(value) != rows for value in batch.values()):
            smaller.append(batch)
            continue
        parts = {name: value.split(size) for name, value in batch.items()}
        smaller += [dict(zip(parts, part, strict=True)) for part in zip(*parts.values(), strict=True)]
    return smaller


def own_rows(batches: Sequence[Batch]) -> list[Batch]:
    """What is left of batches for this process: some rows of each, or every so-manieth where they cannot be divided."""
    parts = []
    for number, batch in enumerate(batches):
        rows = count_rows(batch)
        if rows >= processes() and all(len(value) == rows for value in batch.values()):
            parts.append({name: value[rank() :: processes()] for name, value in batch.items()})
        elif number % processes() == rank():
            parts.append(batch)
    return parts


def _is_text(batch: Batch) -> bool:
    return "input_ids" in batch


def count_rows(batch: Batch) -> int:
    """Number of rows of a batch."""
    return len(next(iter(batch.values())))


def count_tokens(batch: Batch) -> int:
    """Number of tokens that are not padding; the number of rows if the batch is not text."""
    if not _is_text(batch):
        return count_rows(batch)
    mask = batch.get("attention_mask")
    ids = batch["input_ids"]
    return max(1, int(mask.bool().sum()) if mask is not None and mask.shape == ids.shape else ids.numel())
