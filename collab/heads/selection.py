"""Which heads to keep: by their scores, or by number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..errors import ConfigurationError
from ..models.layers import AttentionLayer, check_numbers

Importance = Mapping[str, Mapping[int, float]]
Keep = dict[str, tuple[int, ...]]


def least_important(importance: Importance, count: int) -> Keep:
    """Heads to keep when the `count` least important heads of the whole model are removed.

    Raises:
        ConfigurationError: if no head would be left.
    """
    ranked = sorted((value, layer, head) for layer, heads in importance.items() for head, value in heads.items())
    if count >= len(ranked):
        raise ConfigurationError(f"Removing {count} heads of {len(ranked)} would leave the model without any.")
    removed = {(layer, head) for _, layer, head in ranked[:count]}
    return {layer: tuple(head for head in heads if (layer, head) not in removed) for layer, heads in importance.items()}


def most_important_per_layer(importance: Importance, count: int) -> Keep:
    """Heads to keep when every layer keeps at most `count`, its most important ones."""
    return {
        layer: tuple(sorted(sorted(heads, key=lambda head: -heads[head])[:count]))
        for layer, heads in importance.items()
    }


def by_number(layers: Sequence[AttentionLayer], keep: Mapping[int, Sequence[int]]) -> Keep:
    """Heads to keep by layer name, from heads by layer number.

    Raises:
        ConfigurationError: if there is no such layer.
    """
    check_numbers(layers, keep)
    return {layers[number].name: tuple(sorted(heads)) for number, heads in keep.items()}
