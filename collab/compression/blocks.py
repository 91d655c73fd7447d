"""The layers of an encoder: where each keeps its attention and its feed-forward layer."""

from __future__ import annotations

from dataclasses import dataclass

from transformers import PreTrainedModel

from ..errors import UnsupportedArchitectureError
from ..modeling.collab_attention import CollaborativeAttention
from ..modeling.collab_model import outermost
from ..models.families import Family, collaborative_layers
from ..models.layers import entry_of, passes_per_layer


@dataclass(frozen=True)
class Block:
    """The module names of one layer of a collaborative model.

    Attributes:
        name: the whole layer, an entry of the model's list of layers.
        attention: its attention layer.
        output: the output projection W_O.
        ups: the linear layers of its feed-forward layer before the activation, with W_1; two if it is gated.
        halves: how many outputs of one of them a neuron has; see `FeedForward`.
        down: the one after it, with W_2.
        passes: how many times the model applies it: 1, or more where passes share weights (ALBERT).
    """

    name: str
    attention: str
    output: str
    ups: tuple[str, ...]
    halves: int
    down: str
    passes: float

    @property
    def list_name(self) -> str:
        """Module name of the list of layers."""
        return self.name.rpartition(".")[0]

    def attention_layer(self, model: PreTrainedModel) -> CollaborativeAttention:
        """Its attention layer in a model."""
        layer = model.get_submodule(self.attention)
        assert isinstance(layer, CollaborativeAttention)
        return layer


def blocks_of(model: PreTrainedModel, family: Family) -> list[Block]:
    """The layers of a collaborative encoder, in order.

    Raises:
        UnsupportedArchitectureError: if its layers are not each an attention and a feed-forward layer of known names.
    """
    attention = collaborative_layers(model)
    known = family.base.feed_forward_classes
    feed_forward = list(outermost(model, known))
    if len(attention) != len(feed_forward):
        raise unknown_feed_forward(family)
    passes = passes_per_layer(model, len(attention))
    blocks = []
    for (name, layer), (holder, module) in zip(attention.items(), feed_forward, strict=True):
        names = known[type(module)]
        blocks.append(
            Block(
                entry_of(model, name),
                name,
                layer.output_name(name),
                tuple(f"{holder}.{up}" for up in names.ups),
                names.halves,
                f"{holder}.{names.down}",
                passes,
            )
        )
    return blocks


def unknown_feed_forward(family: Family) -> UnsupportedArchitectureError:
    """The refusal of a family whose feed-forward layers have no known names."""
    return UnsupportedArchitectureError(
        f"collab does not know the feed-forward layers of {family.native_model_type} models, so it cannot compress "
        "them. Convert the model instead (collab convert)."
    )
