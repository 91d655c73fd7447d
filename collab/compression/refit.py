"""Output projections refitted in sequence, on the compressed model's own inputs.

The parts of a layer are narrowed for the inputs that the layer has in the original. In the compressed model the layers
before it have changed them, and a dropped layer adds nothing. For W_O and W_2 of one layer after the other, let a be
the projection's inputs in the compressed model, s the sum that its output enters, and t the same sum in the original,
after the layers that were dropped behind it. Then

    Δ = (aᵀa + λI)⁻¹ aᵀ (t - s)

is added to the projection, and to its bias by a column of ones in a: the least-squares correction of all errors so far.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache, PreTrainedModel
from transformers.pytorch_utils import Conv1D

from ..data.batches import Batch
from ..modeling.collab_native import as_linear
from ..models.inputs import on_device
from ..models.padding import query_mask, without_padding
from ..models.states import evaluating, frozen
from ..planning.allocation import Widths
from ..processes import dealt, from_main, summed
from ..progress import Progress
from .blocks import Block, stacks_of
from .statistics import ridged

logger = logging.getLogger(__name__)

_RIDGE = 1e-2
"""λ relative to the mean square of an input."""

_SAME = 1e-4
"""Largest relative difference of a sum from its terms, or four roundings where those are larger."""

_LEAST = 1e-9
"""Relative squared error of a sum below which there is nothing to correct."""


@dataclass
class _Call:
    """The arguments of a layer for one batch, without the states that it transforms."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def run(self, layer: nn.Module, states: Tensor) -> Tensor:
        """The layer's output states for input states."""
        if "hidden_states" in self.kwargs:
            output = layer(*self.args, **self.kwargs | {"hidden_states": states})
        else:
            output = layer(states, *self.args[1:], **self.kwargs)
        return output[0] if isinstance(output, tuple) else output


def refit(
    model: PreTrainedModel,
    original: PreTrainedModel,
    blocks: Sequence[Block],
    widths: Widths,
    batches: Sequence[Batch],
    progress: Progress,
) -> int:
    """Refits the output projections of a compressed model, in place; weights that it shares stay as they are.

    Several processes, which all call this, divide the rows; the main process solves for each projection.

    Args:
        model: the compressed model.
        original: the original with collaborative layers of full width.
        blocks: the original's layers.
        widths: what is left of each of them; None for a layer that was dropped.
        batches: rows.
        progress: called after every layer.

    Returns:
        The number of projections that were refitted: 0 if layers share their weights, or if no sum was recognized.
    """
    if any(block.passes > 1 for block in blocks):
        return 0
    with evaluating(model, original), frozen(model), torch.no_grad():
        moved = [on_device(batch, original) for _, batch, _ in dealt(batches)]
        # A decoder's after its encoder's, whose states it reads.
        return sum(_refit_stack(model, original, blocks, stack, widths, moved, progress) for stack in stacks_of(blocks))


def _refit_stack(
    model: PreTrainedModel,
    original: PreTrainedModel,
    blocks: Sequence[Block],
    stack: Sequence[int],
    widths: Widths,
    batches: Sequence[Batch],
    progress: Progress,
) -> int:
    """Refits the projections of the layers of one stack, whose numbers are given; the other arguments as in `refit`."""
    first = blocks[stack[0]]
    kept = [number for number in stack if widths[number] is not None]
    left = [f"{first.list_name}.{place}" for place in range(len(kept))]
    states, calls = _calls(original, [blocks[number].name for number in stack], batches)
    for number in range(stack[0], kept[0]):  # dropped before all that are kept
        native = original.get_submodule(blocks[number].name)
        states = [call.run(native, hidden) for call, hidden in zip(calls[number - stack[0]], states, strict=True)]
    ours, own_calls = _calls(model, left, batches)
    masks = [query_mask(batch, first.stack) for batch in batches]
    count = 0
    progress("refitting", 0, len(kept))
    following = [*kept[1:], stack[-1] + 1]
    for place, (number, after) in enumerate(zip(kept, following, strict=True)):
        layer = model.get_submodule(left[place])
        natives = {later: original.get_submodule(blocks[later].name) for later in range(number, after)}
        # The main process has the first of the batches.
        sums = from_main(partial(_sums, natives[number], blocks[number], calls[number - stack[0]], states))
        *outputs, down = _parts(blocks[number])
        aims: dict[str, list[Tensor]] = {part: [] for part in sums}
        for each, mask in enumerate(masks):
            for later, native in natives.items():
                watched = outputs * (later == number) + [down] * (later == after - 1)
                with _watching(native, {part: sums[part] for part in watched if part in sums}) as seen:
                    states[each] = calls[later - stack[0]][each].run(native, states[each])
                for part in watched:
                    if part in sums:
                        aims[part].append(_tokens(seen[part], mask))
        for part in sums:
            count += _correct(layer, part, sums, own_calls[place], ours, aims[part], masks)
        ours = [call.run(layer, hidden) for call, hidden in zip(own_calls[place], ours, strict=True)]
        progress("refitting", place + 1, len(kept))
    return count


def _tokens(states: Tensor, mask: Tensor | None) -> Tensor:
    """The states of the tokens that are not padding, (N, D)."""
    return without_padding(states, mask).flatten(0, -2)


def _calls(
    model: PreTrainedModel, names: Sequence[str], batches: Sequence[Batch]
) -> tuple[list[Tensor], list[list[_Call]]]:
    """The states that enter the first of some layers, by batch, and the arguments of each, by layer and batch."""
    first: list[Tensor] = []
    calls: list[list[_Call]] = [[] for _ in names]

    def record(number: int) -> Any:
        def hook(module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
            if number == 0:
                first.append(args[0] if args else kwargs["hidden_states"])
            # The layers run again on other states, so not on a cache of keys, which would grow.
            rest = {name: None if name == "hidden_states" else _without_cache(value) for name, value in kwargs.items()}
            calls[number].append(_Call((None, *map(_without_cache, args[1:])) if args else (), rest))

        return hook

    with contextlib.ExitStack() as hooks:
        for number, name in enumerate(names):
            layer = model.get_submodule(name)
            hooks.enter_context(layer.register_forward_pre_hook(record(number), with_kwargs=True))
        for batch in batches:
            model(**batch)
    return first, calls


def _without_cache(value: Any) -> Any:
    return None if isinstance(value, Cache) else value


def _sums(layer: nn.Module, block: Block, calls: Sequence[_Call], every: Sequence[Tensor]) -> dict[str, str]:
    """Where the output of each W_O and of W_2 is added to the states: by projection, the module that reads the sum.

    The name of the layer itself, "", stands for what it returns. A projection whose output is normalized or scaled
    before it is added has no such place.

    Args:
        layer: the original's layer.
        block: its names.
        calls: its arguments, by batch; the first is looked at.
        every: its input states, by batch.
    """
    call, states = calls[0], every[0]
    seen: list[tuple[str, Tensor]] = [("", states)]  # what modules are given and return, in order
    outputs: dict[str, tuple[int, Tensor]] = {}
    parts = _parts(block)

    def enter(name: str) -> Any:
        def hook(module: nn.Module, args: tuple) -> None:
            if args and isinstance(args[0], Tensor) and args[0].shape == states.shape:
                seen.append((name, args[0]))

        return hook

    def leave(name: str) -> Any:
        def hook(module: nn.Module, args: tuple, output: Any) -> None:
            tensor = output[0] if isinstance(output, tuple) else output
            if isinstance(tensor, Tensor) and tensor.shape == states.shape:
                if name in parts:
                    outputs[name] = len(seen), tensor
                seen.append((f"after {name}", tensor))

        return hook

    with contextlib.ExitStack() as hooks:
        for name, module in layer.named_modules():
            if name:
                hooks.enter_context(module.register_forward_pre_hook(enter(name)))
                hooks.enter_context(module.register_forward_hook(leave(name)))
        returned = call.run(layer, states)
    seen.append(("", returned))
    places = {}
    for part, (start, output) in outputs.items():
        for name, tensor in seen[start:]:
            rest = tensor - output
            if not name.startswith("after ") and any(_same(rest, before) for _, before in seen[:start]):
                places[part] = name
                break
    return places


def _parts(block: Block) -> list[str]:
    """The names of W_O of each attention, and of W_2, within a layer."""
    return [name.removeprefix(f"{block.name}.") for name in block.outputs]


def _same(first: Tensor, second: Tensor) -> bool:
    tolerance = max(_SAME, 4 * torch.finfo(first.dtype).eps)
    return float((first.float() - second.float()).norm()) <= tolerance * float(second.float().norm()) > 0


@contextlib.contextmanager
def _watching(layer: nn.Module, sums: Mapping[str, str]) -> Iterator[dict[str, Tensor]]:
    """The sums of projections in the next run of a layer, by projection, and its inputs as ``inputs of`` it."""
    seen: dict[str, Tensor] = {}
    with contextlib.ExitStack() as hooks:
        for part, name in sums.items():

            def enter(module: nn.Module, args: tuple, part: str = part) -> None:
                seen.setdefault(part, args[0])

            def leave(module: nn.Module, args: tuple, output: Any, part: str = part) -> None:
                seen[part] = output[0] if isinstance(output, tuple) else output

            def given(module: nn.Module, args: tuple, part: str = part) -> None:
                seen[f"inputs of {part}"] = args[0]

            reader = layer.get_submodule(name)
            hooks.enter_context(reader.register_forward_pre_hook(enter) if name else layer.register_forward_hook(leave))
            hooks.enter_context(layer.get_submodule(part).register_forward_pre_hook(given))
        yield seen


def _correct(
    layer: nn.Module,
    part: str,
    sums: Mapping[str, str],
    calls: Sequence[_Call],
    states: Sequence[Tensor],
    aims: Sequence[Tensor],
    masks: Sequence[Tensor | None],
) -> bool:
    """Adds the correction to one projection of a layer, whose sum is to come close to `aims`; whether there was one."""
    stored = layer.get_submodule(part)
    linear = as_linear(stored)
    width = linear.in_features + (linear.bias is not None)
    products = torch.zeros(width, width, dtype=torch.float64, device=linear.weight.device)
    missing = torch.zeros(width, linear.out_features, dtype=torch.float64, device=linear.weight.device)
    squares = torch.zeros(2, dtype=torch.float64, device=linear.weight.device)  # of the error, and of the aim
    for call, hidden, aim, mask in zip(calls, states, aims, masks, strict=True):
        with _watching(layer, {part: sums[part]}) as seen:
            call.run(layer, hidden)
        inputs, actual = (_tokens(seen[name], mask).float() for name in (f"inputs of {part}", part))
        if linear.bias is not None:
            inputs = torch.cat([inputs, inputs.new_ones(len(inputs), 1)], dim=1)  # (N, width)
        rest = aim.float() - actual  # (N, D)
        products += inputs.T @ inputs
        missing += inputs.T @ rest
        squares += torch.stack([rest.square().sum(), aim.float().square().sum()])
    for own in (products, missing, squares):
        summed(own, 0)
    change = from_main(partial(_change, part, products, missing, squares))
    if change is None:
        return False
    change = change.T.to(linear.weight)  # (D, width)
    columns = linear.in_features
    weight = linear.weight + change[:, :columns]
    weight = weight.T.contiguous() if isinstance(stored, Conv1D) else weight
    if linear.bias is not None:
        stored.bias.data = linear.bias + change[:, columns]
    stored.weight.data = weight  # not in place: the original has the same tensor
    return True


def _change(part: str, products: Tensor, missing: Tensor, squares: Tensor) -> Tensor | None:
    """Δ, (width, D), from aᵀa, aᵀ(t - s), and the squares of t - s and of t; None if there is nothing to correct."""
    error, whole = squares.tolist()
    if error <= _LEAST * whole:
        return None
    logger.info("%s: relative squared error of the sum before %.5f", part, error / whole)
    return torch.linalg.solve(ridged(products, _RIDGE), missing).cpu()
