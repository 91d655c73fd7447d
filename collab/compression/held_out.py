"""What models lose on held-out rows: how far their answers are from the original's.

A model that differs from another only from some layer on starts with what that returns for the layers before it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

from transformers import PreTrainedModel

from ..data.batches import Batch
from ..evaluation.compare import compare_outputs, outputs_on
from ..models.outputs import Output, entries_of
from .blocks import Block

_KEPT = 2**28
"""Numbers that are kept at most; a gigabyte in float32."""

_LOGITS = 2**28
"""Numbers in the original's answers that are kept to compare with, at most; a gigabyte."""


class HeldOut:
    """The rows that models are judged by.

    Args:
        native: the original.
        model: its lossless conversion.
        blocks: the layers of that, in order.
        batches: the rows.
    """

    def __init__(
        self, native: PreTrainedModel, model: PreTrainedModel, blocks: Sequence[Block], batches: Sequence[Batch]
    ) -> None:
        self._native, self._model, self._blocks, self._batches = native, model, blocks, batches

    def loss(self, model: PreTrainedModel) -> float:
        """How far a model's answers are from the original's; 0 where they are the same.

        The answers of a model that writes are the distributions of the next token, given the targets so far.
        """
        return self._distance(outputs_on(self._native, model, self._compared))

    def loss_of_change(self, model: PreTrainedModel, changed: int) -> float:
        """The loss of a model whose layers before number `changed` are those of the lossless conversion.

        The model is of no use afterwards.
        """
        return self._distance(self._known.outputs_on(model, changed))

    @cached_property
    def _answers(self) -> dict[int, list[Output]]:
        """The original's answers by number of the batch; of a large vocabulary, to some of the batches.

        Batches are ordered by source and length, so these are spread evenly over their numbers.
        """
        count, kept = len(self._batches), 0
        answers: dict[int, list[Output]] = {}
        for number in sorted(range(count), key=lambda number: f"{number:0{count.bit_length()}b}"[::-1]):
            (answers[number],) = outputs_on(self._native, self._native, [self._batches[number]])
            kept += sum(output.values.numel() for output in answers[number])
            if kept >= _LOGITS:
                break
        return dict(sorted(answers.items()))

    @property
    def _expected(self) -> list[list[Output]]:
        """The original's answers, batch by batch."""
        return [*self._answers.values()]

    @property
    def _compared(self) -> Sequence[Batch]:
        """The batches of `_expected`."""
        return [self._batches[number] for number in self._answers]

    @cached_property
    def _known(self) -> KnownLayers:
        """What the layers of the lossless conversion return; those of the last are never needed."""
        return KnownLayers(self._native, self._model, self._blocks[:-1], self._compared)

    def _distance(self, outputs: list[list[Output]]) -> float:
        """See `loss`; from a model's answers."""
        agreed = compare_outputs(self._expected, outputs)
        if "kl" in agreed:
            return agreed["kl"]
        return agreed["absolute_difference"] if "absolute_difference" in agreed else 1 - agreed["embedding_cosine"]


class KnownLayers:
    """What the layers of a model return for batches; of a large model, the first layers.

    Args:
        original: tells of what kind the outputs of models are.
        model: the model; it runs once on each batch.
        blocks: its layers, in order.
        batches: what to run it on.
    """

    def __init__(
        self, original: PreTrainedModel, model: PreTrainedModel, blocks: Sequence[Block], batches: Sequence[Batch]
    ) -> None:
        self._original, self._blocks, self._batches = original, blocks, batches
        self._returned: list[list[Any]] = []  # by batch, by layer
        count = len(blocks)
        for batch in batches:
            self._returned.append(_returned(original, model, blocks, batch))
            count = min(count, len(self._returned[-1]))
            while sum(entries_of(layer) or 0 for known in self._returned for layer in known[:count]) > _KEPT:
                count -= 1
            for known in self._returned:
                del known[count:]

    def outputs_on(self, model: PreTrainedModel, changed: int) -> list[list[Output]]:
        """The outputs of a model on the batches, as `collab.evaluation.compare.outputs_on` gives them.

        Args:
            model: a model whose layers before number `changed` are those of the known one. Its layers are replaced.
            changed: see there.
        """
        outputs = []
        for batch, known in zip(self._batches, self._returned, strict=True):
            for block, layer in zip(self._blocks[:changed], known, strict=False):
                model.get_submodule(block.name).forward = _returning(layer)
            outputs += outputs_on(self._original, model, [batch])
        return outputs


def _returned(original: PreTrainedModel, model: PreTrainedModel, blocks: Sequence[Block], batch: Batch) -> list[Any]:
    """What the layers of a model return for a batch, up to the first that is called twice or returns a cache."""
    calls: list[list[Any]] = [[] for _ in blocks]
    with contextlib.ExitStack() as hooks:
        for block, own in zip(blocks, calls, strict=True):
            layer = model.get_submodule(block.name)
            hooks.enter_context(layer.register_forward_hook(_keeping(own)))
        outputs_on(original, model, [batch])
    known = []
    for own in calls:
        if len(own) != 1 or entries_of(own[0]) is None:
            break
        known += own
    return known


def _keeping(kept: list[Any]) -> Callable[..., None]:
    return lambda module, inputs, output: kept.append(output)


def _returning(value: Any) -> Callable[..., Any]:
    return lambda *inputs, **named: value
