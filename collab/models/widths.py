"""The widths of a model's layers, and those that they had in the original."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn
from transformers import PreTrainedModel

from ..modeling.collab_model import outermost
from ..modeling.collab_native import as_linear
from .families import family_of
from .layers import attention_layers, config_of


@dataclass(frozen=True)
class LayerWidths:
    """Widths of an attention layer and of the feed-forward layer beside it.

    Attributes:
        name: module name of the attention layer.
        rank: R, query/key dimensions of all heads together.
        full_rank: K, those of the original layer.
        heads: heads left.
        total_heads: H of the original layer.
        value_width: width of each head's values.
        head_dim: d of the original layer.
        neurons: width of the feed-forward layer; None where it is not known, and for attention to another sequence.
        full_neurons: that of the original layer.
    """

    name: str
    rank: int
    full_rank: int
    heads: int
    total_heads: int
    value_width: int
    head_dim: int
    neurons: int | None = None
    full_neurons: int | None = None


def layer_widths(model: PreTrainedModel) -> tuple[LayerWidths, ...]:
    """The widths of every attention layer, in the order of the model.

    Raises:
        UnsupportedArchitectureError: if the model belongs to no family or has no attention layers.
    """
    layers = attention_layers(model)
    given = iter(_neurons(model))
    beside = [layer.kind != "cross" for layer in layers]  # a decoder has two attention layers to a feed-forward layer
    known = sum(beside) == len(_neurons(model))
    neurons = [next(given) if known and own else (None, None) for own in beside]
    return tuple(
        LayerWidths(
            layer.name,
            layer.full_rank if layer.converted is None else layer.converted.spec.rank,
            layer.full_rank,
            len(layer.heads),
            layer.total,
            layer.value_width,
            layer.head_dim,
            *widths,
        )
        for layer, widths in zip(layers, neurons, strict=True)
    )


def _neurons(model: PreTrainedModel) -> list[tuple[int | None, int | None]]:
    """Width of every feed-forward layer, and in the original; None where it is not known."""
    known = family_of(model).base.feed_forward_classes
    widths: list[tuple[int | None, int | None]] = []
    for name, holder in outermost(model, known):
        place = known[type(holder)]
        config = config_of(model.config, name)
        down, full = as_linear(holder.get_submodule(place.down)), getattr(config, place.config_name or "", None)
        is_known = isinstance(down, nn.Linear) and isinstance(full, int)
        widths.append((down.in_features, full) if is_known else (None, None))
    return widths
