"""Chooses the layers that stay dense in long rows: those that lose most in blocks, within a budget."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterable
from contextlib import ExitStack
from functools import partial
from itertools import chain
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel

from ..data.features import special_tokens_around
from ..decomposition import FormName
from ..errors import ConfigurationError, DataError
from ..io.checkpoint import Checkpoint
from ..models.families import collaborative_layers
from ..models.inputs import input_kind, on_device
from ..models.layers import AttentionLayer, attention_layers
from ..models.states import evaluating
from ..planning.allocation import Curve, Point, allocate
from ..planning.cost import LayerShape

logger = logging.getLogger(__name__)

_T = TypeVar("_T")
_ROWS = 4
_ALIKE = 1e-6  # relative to the mean square, a spread below this is rounding
_MEASURED = 4096
"""Tokens of a row at most that the layers are compared on."""


def require_texts(texts: Iterable[_T] | None) -> Iterable[_T]:
    """The texts, or sources of texts, to choose dense layers on.

    Raises:
        ConfigurationError: if there are none.
    """
    if texts is None:
        raise ConfigurationError(
            "dense_layers='auto' (--dense-layers auto) chooses layers by what blocks change on long rows of text. Give "
            "some: texts= or data= (--data; collab convert takes that of --calibration or --heal)."
        )
    return texts


def long_rows(checkpoint: Checkpoint, texts: Iterable[str] | None, shortest: int, longest: int | None) -> list[Tensor]:
    """Texts joined to a few long rows, (1, T) token ids each.

    Args:
        checkpoint: the model, with its tokenizer.
        texts: the texts, in the order in which they follow each other.
        shortest: tokens of the shortest row that is long.
        longest: tokens of the longest row; None for no limit.

    Raises:
        ConfigurationError: if there are no texts, or the model does not read text.
        DataError: if the texts are too short for one row.
    """
    tokenizer = checkpoint.processor
    if input_kind(checkpoint.model) != "text" or tokenizer is None:
        raise ConfigurationError(
            "dense_layers='auto' (--dense-layers auto) is for models of text, with their tokenizer. Name the layers."
        )
    texts = require_texts(texts)
    length = max(shortest, _MEASURED if longest is None else min(longest, _MEASURED))
    texts = iter(texts)
    opening = next(texts, "")
    first, last = special_tokens_around(tokenizer, opening)
    room = length - len(first) - len(last)
    ids: list[int] = []
    for text in chain([opening], texts):
        ids += tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        if len(ids) >= _ROWS * room:
            break
    parts = [ids[start : start + room] for start in range(0, min(len(ids), _ROWS * room), room)]
    rows = [[*first, *part, *last] for part in parts]
    rows = [row for row in rows if len(row) >= shortest]
    if not rows:
        raise DataError(
            f"dense_layers='auto' (--dense-layers auto) needs a row of at least {shortest} tokens (dense_below, "
            f"--dense-below); all of the text has {len(ids)}. Give more text, or name the layers."
        )
    return [torch.tensor([row]) for row in rows]


def errors_in_blocks(dense: PreTrainedModel, blocks: PreTrainedModel, rows: list[Tensor]) -> dict[str, float]:
    """By layer, the squared error of its output in blocks relative to the variance of what it gives when dense.

    Outputs are those of the output projection, in the layer or behind it, as refinement has them. Every layer is given
    what it is given in the dense model, so its error is its own.

    Args:
        dense: a collaborative model without layers in blocks.
        blocks: the same with those in blocks that may be.
        rows: token ids, (1, T) each.
    """
    others = {name: layer for name, layer in collaborative_layers(blocks).items() if layer.spec.long is not None}
    sums = {name: torch.zeros(3, dtype=torch.float64) for name in others}
    outer: dict[str, Any] = {layer.name: layer.output for layer in attention_layers(dense) if not _projects(layer)}

    def compare(name: str, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        exact, context = (_context(each).double() for each in (output, others[name](*args, **kwargs)))
        parts = [context - exact, exact - exact.mean(dim=1, keepdim=True), exact]
        if name in outer:
            parts = [functional.linear(part, outer[name].weight.double()) for part in parts]
        sums[name] += torch.stack([part.square().sum().cpu() for part in parts])

    with ExitStack() as stack, evaluating(dense, blocks), torch.no_grad():
        for name, layer in collaborative_layers(dense).items():
            if name in others:
                hook = layer.register_forward_hook(partial(compare, name), with_kwargs=True)
                stack.callback(hook.remove)
        # A cache would be filled by both layers.
        uncached = {"use_cache": False} if "use_cache" in inspect.signature(dense.forward).parameters else {}
        for row in rows:
            dense(**on_device({"input_ids": row}, dense), **uncached)
    errors = {}
    for name, (error, spread, square) in ((name, each.tolist()) for name, each in sums.items()):
        # Where all tokens are given the same, the spread is rounding.
        whole = spread if spread > _ALIKE * square else square
        errors[name] = error / whole if whole > 0 else 0.0
    for name, error in errors.items():
        logger.info("%s: error in blocks %.4f", name, error)
    return errors


def _projects(layer: AttentionLayer) -> bool:
    """Whether a layer has its output projection inside."""
    return layer.output_name.startswith(f"{layer.name}.")


def _context(output: Any) -> Tensor:
    return output[0] if isinstance(output, tuple) else output


def layers_within(
    blocks: PreTrainedModel, errors: dict[str, float], longest: int | None, budget: float
) -> tuple[int, ...]:
    """The numbers of the layers that stay dense, which lose most for what they cost.

    Args:
        blocks: the model with those layers in blocks that may be.
        errors: of these, by name.
        longest: tokens of the longest row; None for no limit.
        budget: how much of the arithmetic of dense queries, keys and scores in that row is allowed, as a fraction.

    Raises:
        ConfigurationError: if the budget is below what attention takes with all those layers in blocks.
    """
    length = longest or _MEASURED
    layers = attention_layers(blocks)
    curves: list[list[Curve]] = []
    whole = 0
    for layer in layers:
        dense, in_blocks = _arithmetic(layer, length)
        whole += dense
        points = [Point({"queries-keys": 1}, 0, 0)]
        if layer.name in errors:
            points.append(Point({"queries-keys": 0}, in_blocks - dense, errors[layer.name]))
        curves.append([points])
    allocation = allocate(curves, {}, whole, budget * whole, exhaust=True)
    if allocation.cost > budget * whole:
        raise ConfigurationError(
            f"dense_budget={budget} (--dense-budget) cannot be met: in rows of {length} tokens attention takes "
            f"{allocation.cost / whole:.3f} of its arithmetic with all layers in blocks. Allow more, or name layers "
            "(--dense-layers)."
        )
    chosen = [widths is not None and bool(widths["queries-keys"]) for widths in allocation.widths]
    return tuple(number for number, (layer, stays) in enumerate(zip(layers, chosen, strict=True)) if stays)


def _arithmetic(layer: AttentionLayer, length: int) -> tuple[int, int]:
    """FLOPs of a layer's queries, keys and scores in a row of so many tokens, when dense and as it is."""
    module = layer.converted
    if module is None or not layer.heads:
        return 0, 0
    shape, spec = LayerShape.of_layer(layer), module.spec
    content = "folded" if module.query_offset is not None else "exact"
    form = cast(FormName, spec.form)
    keys = None if spec.long is None else spec.long.keys(length, module.kind == "decoder")
    return shape.flops(form, spec.rank, content, length), shape.flops(form, spec.rank, content, length, keys)
