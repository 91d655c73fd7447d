"""Which heads stay: by their scores, or by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..errors import ConfigurationError
from ..models.layers import HeadLayer, check_numbers

Importance = Mapping[str, Mapping[int, float]]
Keep = dict[str, tuple[int, ...]]


def least_important(importance: Importance, count: int) -> Keep:
    """What stays if the least important heads of the whole model go.

    Raises:
        ConfigurationError: if none would stay.
    """
    ranked = sorted((value, layer, head) for layer, heads in importance.items() for head, value in heads.items())
    if count >= len(ranked):
        raise ConfigurationError(f"Removing {count} heads of {len(ranked)} would leave the model without a single one.")
    gone = {(layer, head) for _, layer, head in ranked[:count]}
    return {layer: tuple(head for head in heads if (layer, head) not in gone) for layer, heads in importance.items()}


def most_important_per_layer(importance: Importance, count: int) -> Keep:
    """What stays if every layer keeps so many heads at most."""
    return {
        layer: tuple(sorted(sorted(heads, key=lambda head: -heads[head])[:count]))
        for layer, heads in importance.items()
    }


def by_number(layers: Sequence[HeadLayer], keep: Mapping[int, Sequence[int]]) -> Keep:
    """Heads to keep by the number of their layer.

    Raises:
        ConfigurationError: if there is no such layer.
    """
    check_numbers(layers, keep)
    return {layers[number].name: tuple(sorted(set(heads))) for number, heads in keep.items()}
