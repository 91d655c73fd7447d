"""What the layers of a model return, kept so that a model that differs after them need not compute it again."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from ..data.features import Batch
from ..evaluation.compare import outputs_on
from ..models.outputs import Output
from .blocks import Block

_KEPT = 2**28
"""Numbers that are kept at most; a gigabyte in float32."""


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
            while sum(_size(layer) or 0 for known in self._returned for layer in known[:count]) > _KEPT:
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
        if len(own) != 1 or _size(own[0]) is None:
            break
        known += own
    return known


def _keeping(kept: list[Any]) -> Callable[..., None]:
    return lambda module, inputs, output: kept.append(output)


def _returning(value: Any) -> Callable[..., Any]:
    return lambda *inputs, **named: value


def _size(returned: Any) -> int | None:
    """The number of entries of the tensors that a layer returned; None if it returned anything else."""
    if isinstance(returned, Tensor):
        return returned.numel()
    if isinstance(returned, tuple | list):
        sizes = [_size(each) for each in returned]
        return None if None in sizes else sum(size or 0 for size in sizes)
    return 0 if returned is None else None
