"""The layers of a model: where each keeps its attention and its feed-forward layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from transformers import PreTrainedModel

from ..errors import UnsupportedArchitectureError
from ..modeling.collab_attention import CollaborativeAttention
from ..modeling.collab_model import outermost
from ..modeling.collab_native import LayerKind
from ..models.families import Family, collaborative_layers
from ..models.layers import entry_of, part_of, passes_per_layer
from ..planning.budget import OF_ANOTHER, OF_ITSELF, Part, Stack


@dataclass(frozen=True)
class Attention:
    """The module names of an attention layer of a collaborative model.

    Attributes:
        name: the attention layer.
        output: its output projection W_O.
        kind: ``encoder``, ``decoder`` or ``cross``.
    """

    name: str
    output: str
    kind: LayerKind

    @property
    def parts(self) -> tuple[Part, Part]:
        """The names of its queries and keys, and of its values."""
        return OF_ANOTHER if self.kind == "cross" else OF_ITSELF

    def layer(self, model: PreTrainedModel) -> CollaborativeAttention:
        """The attention layer in a model."""
        layer = model.get_submodule(self.name)
        assert isinstance(layer, CollaborativeAttention)
        return layer


@dataclass(frozen=True)
class Block:
    """The module names of one layer of a collaborative model.

    Attributes:
        name: the whole layer, an entry of a list of layers of the model.
        attention: its attention to the sequence itself, and to another sequence if it has one, in order.
        ups: the linear layers of its feed-forward layer before the activation, with W_1; two if it is gated.
        halves: how many outputs of one of them a neuron has; see `FeedForward`.
        down: the one after it, with W_2.
        width_name: the entry of the native config for its number of neurons, of a part's after ``encoder.`` or
            ``decoder.``; None if that is for other layers, too.
        passes: how many times the model applies it: 1, or more where passes share weights (ALBERT).
    """

    name: str
    attention: tuple[Attention, ...]
    ups: tuple[str, ...]
    halves: int
    down: str
    width_name: str | None
    passes: float

    @property
    def list_name(self) -> str:
        """Module name of the list of layers."""
        return self.name.rpartition(".")[0]

    @property
    def stack(self) -> Stack:
        """Whether it is a layer of a decoder, which sees no later tokens, or of an encoder."""
        return "encoder" if self.attention[0].kind == "encoder" else "decoder"

    @property
    def outputs(self) -> tuple[str, ...]:
        """The projections whose outputs are added to the states: W_O of each attention, and W_2."""
        return (*(attention.output for attention in self.attention), self.down)

    @property
    def projections(self) -> dict[Part, str]:
        """By part that may be narrower, the one of `outputs` that comes after it."""
        of_attention = {part: attention.output for attention in self.attention for part in attention.parts}
        return {**of_attention, "feed-forward": self.down}


def blocks_of(model: PreTrainedModel, family: Family) -> list[Block]:
    """The layers of a collaborative model, in order, those of an encoder before those of its decoder.

    Raises:
        UnsupportedArchitectureError: if its layers are not each one or two attention layers and a feed-forward layer of
            known names.
    """
    attention: dict[str, list[Attention]] = {}
    layers = collaborative_layers(model)
    for name, layer in layers.items():
        own = Attention(name, layer.output_name(name), layer.kind)
        attention.setdefault(entry_of(model, name), []).append(own)
    known = family.base.feed_forward_classes
    holders = {entry_of(model, name): (name, known[type(module)]) for name, module in outermost(model, known)}
    if list(attention) != list(holders):
        raise unknown_feed_forward(family)
    passes = passes_per_layer(model, len(layers))
    blocks = []
    for name, (holder, names) in holders.items():
        ups = tuple(f"{holder}.{up}" for up in names.ups)
        down = f"{holder}.{names.down}"
        part = part_of(model.config, name)
        width_name = f"{part}.{names.config_name}" if part and names.config_name else names.config_name
        blocks.append(Block(name, tuple(attention[name]), ups, names.halves, down, width_name, passes))
    return blocks


def stacks_of(blocks: Sequence[Block]) -> list[list[int]]:
    """The numbers of the layers of each list of layers, in order: of an encoder, of a decoder, or of both."""
    stacks: dict[str, list[int]] = {}
    for number, block in enumerate(blocks):
        stacks.setdefault(block.list_name, []).append(number)
    return list(stacks.values())


def unknown_feed_forward(family: Family) -> UnsupportedArchitectureError:
    """The refusal of a family whose feed-forward layers have no known names."""
    return UnsupportedArchitectureError(
        f"collab does not know the feed-forward layers of {family.native_model_type} models, so it cannot compress "
        "them. Convert the model instead (collab convert)."
    )
