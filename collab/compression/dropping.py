"""Layers that may be dropped, and what is left of a model without some of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from ..models.layers import config_of, set_layer_count
from .blocks import Block, stacks_of


def droppable(model: PreTrainedModel, blocks: Sequence[Block]) -> list[int]:
    """The layers that may be dropped, by number: those with weights of their own, and with what the last one has.

    The first layer of some models has more (T5: the bias of relative positions) or less (ModernBERT: no norm), and
    another one cannot take its place. Layers stay whose states a head reads besides the last ones' (BEiT).
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
        numbers += alike if len(stack) > 1 else []
    return numbers


def without_layers(
    state: Mapping[str, Tensor], config: Any, blocks: Sequence[Block], there: Sequence[bool]
) -> dict[str, Tensor]:
    """The weights of a model without some layers, under the names that they have in it.

    Args:
        state: its weights, without those of the layers that are gone.
        config: its config, which is changed to say which are gone.
        blocks: the layers of the whole model.
        there: which of them are there.
    """
    state, stacks = dict(state), stacks_of(blocks)
    for stack in stacks:
        kept = [place for place, number in enumerate(stack) if there[number]]
        if len(kept) < len(stack):
            state = _renumbered(state, [blocks[stack[place]] for place in kept])
            _drop_in_config(config, len(stacks) > 1 and stack is stacks[-1], len(stack), kept)
            _renumber_states(config_of(config, blocks[stack[0]].name), kept)
    return state


def _renumbered(state: Mapping[str, Tensor], kept: Sequence[Block]) -> dict[str, Tensor]:
    """The weights under the names that they have where only these of the layers of a stack are left."""
    places = {f"{block.name}.": f"{block.list_name}.{number}." for number, block in enumerate(kept)}
    renamed = {}
    for name, tensor in state.items():
        old = next((prefix for prefix in places if name.startswith(prefix)), "")
        renamed[places.get(old, "") + name[len(old) :]] = tensor
    return renamed


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
