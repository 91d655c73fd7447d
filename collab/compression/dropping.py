"""Layers that may be dropped, and what is left of a model without some of them."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..models.assembly import described_shapes
from ..models.layers import config_of, set_layer_count
from .blocks import Block, stacks_of


def droppable(model: PreTrainedModel, blocks: Sequence[Block]) -> list[int]:
    """The layers that may be dropped, by number: those with weights of their own, and with what the last one has.

    The first layer of some models has more (T5: the bias of relative positions) or less (ModernBERT: no norm), and
    another one cannot take its place. Layers stay whose states a head reads besides the last ones' (BEiT), and all
    where a head weighs the states of each (wav2vec 2.0 with `use_weighted_layer_sum`).

    Args:
        model: the original.
        blocks: its layers.
    """
    scaled_by_place = getattr(model.config, "scale_attn_by_inverse_layer_idx", False)  # GPT-2
    if scaled_by_place or any(block.passes > 1 for block in blocks):
        return []
    names = [{name for name, _ in model.get_submodule(block.name).named_parameters()} for block in blocks]
    numbers = []
    for stack in stacks_of(blocks):
        read = _read_after(config_of(model.config, blocks[stack[0]].name))
        staying = {stack[count - 1] for count in read if count} if len(read) > 1 else ()
        alike = [number for number in stack if names[number] == names[stack[-1]] and number not in staying]
        if len(stack) > 1 and alike and weights_by_layer(model, blocks, alike[0]) is not None:
            numbers += alike
    return numbers


def weights_by_layer(model: PreTrainedModel, blocks: Sequence[Block], number: int) -> dict[str, int] | None:
    """The weights outside the layers of a stack that have as many entries for each of them: ESM's of contacts.

    Args:
        model: the original.
        blocks: its layers.
        number: the number of a layer of the stack that the others can do without.

    Returns:
        The dimension along which they have them, by name; None if the size of another weight depends on the number of
        layers, too.
    """
    config = copy.deepcopy(model.config)
    without_layers({}, config, blocks, [other != number for other in range(len(blocks))])
    fewer = described_shapes(model, config)
    count = next(len(stack) for stack in stacks_of(blocks) if number in stack)
    inside = tuple(f"{block.name}." for block in blocks)
    outside = {name: tensor.shape for name, tensor in model.state_dict().items() if not name.startswith(inside)}
    dimensions = {}
    for name, shape in outside.items():
        for dimension, (size, without) in enumerate(zip(shape, fewer[name], strict=True)):
            if size == without:
                continue
            if size % count or without != size - size // count:
                return None
            dimensions[name] = dimension
    return dimensions


def without_layers(
    state: Mapping[str, Tensor],
    config: Any,
    blocks: Sequence[Block],
    there: Sequence[bool],
    by_layer: Sequence[Mapping[str, int]] = (),
) -> dict[str, Tensor]:
    """The weights of a model without some layers, under the names that they have in it.

    Args:
        state: the weights of the whole model.
        config: its config, which is changed to say which are gone.
        blocks: the layers of the whole model.
        there: which of them are there.
        by_layer: `weights_by_layer` of each stack.
    """
    state, stacks = renumbered(state, blocks, there), stacks_of(blocks)
    for stack, dimensions in zip(stacks, by_layer or [{} for _ in stacks], strict=True):
        kept = [place for place, number in enumerate(stack) if there[number]]
        if len(kept) < len(stack):
            for name, dimension in dimensions.items():
                state[name] = _kept(state[name], dimension, len(stack), kept)
            _drop_in_config(config, len(stacks) > 1 and stack is stacks[-1], len(stack), kept)
            _renumber_states(config_of(config, blocks[stack[0]].name), kept)
    return state


def renumbered(by_name: Mapping[str, Any], blocks: Sequence[Block], there: Sequence[bool]) -> dict[str, Any]:
    """Weights, or what belongs to them, under the names that these have in a model without some layers.

    Args:
        by_name: by the names in the whole model; those of the layers that are gone are left out.
        blocks: the layers of the whole model.
        there: which of them are there.
    """
    places: dict[str, str | None] = {}  # by prefix; None of what is gone
    for stack in stacks_of(blocks):
        kept = [number for number in stack if there[number]]
        if len(kept) < len(stack):
            places |= {f"{blocks[number].name}.": None for number in stack}
            places |= {f"{blocks[number].name}.": f"{blocks[number].list_name}.{at}." for at, number in enumerate(kept)}
    renamed = {}
    for name, value in by_name.items():
        old = next((prefix for prefix in places if name.startswith(prefix)), "")
        new = places.get(old, "")
        if new is not None:
            renamed[new + name[len(old) :]] = value
    return renamed


def _kept(tensor: Tensor, dimension: int, count: int, kept: Sequence[int]) -> Tensor:
    """What some of `count` layers have of a tensor that has as many entries for each along a dimension."""
    entries = tensor.unflatten(dimension, (count, -1))
    return entries.index_select(dimension, torch.tensor(kept, device=tensor.device)).flatten(dimension, dimension + 1)


def _drop_in_config(config: Any, decoder: bool, count: int, kept: Sequence[int]) -> None:
    """Says in a config that a stack of `count` layers has only some of them."""
    set_layer_count(config, decoder, len(kept))
    if len(getattr(config, "layer_types", None) or ()) == count:
        config.layer_types = [config.layer_types[place] for place in kept]
    dropped = [place for place in range(count) if place not in kept]
    setattr(config, "collab_dropped_decoder_layers" if decoder else "collab_dropped_layers", dropped)


def _read_after(config: Any) -> list[int]:
    """After how many layers a model of images reads states for a head; of most models nothing says so."""
    indices = getattr(config, "out_indices", None) or ()
    stages = getattr(config, "stage_names", None)
    # Stages are counted from the embeddings; Data2Vec, which has no names for them, counts those as the first.
    return [index - 1 if stages is None else index % len(stages) for index in indices]


def _renumber_states(config: Any, kept: Sequence[int]) -> None:
    """Renumbers the layers whose states a head reads, after some were dropped."""
    counts = [sum(place < count for place in kept) for count in _read_after(config)]
    if getattr(config, "stage_names", None):
        config.stage_names = ["stem", *(f"stage{number}" for number in range(1, len(kept) + 1))]
        config.out_indices = counts or None
    elif counts:
        config.out_indices = [count + 1 for count in counts]
