"""Which heads stay: by their scores, or by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..errors import ConfigurationError
from ..models.layers import HeadLayer, check_numbers
from .scores import SCORES

Importance = Mapping[str, Mapping[int, float]]
Keep = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class PruneOptions:
    """Which heads to prune: one of `fraction`, `per_layer` and `keep` says.

    Attributes:
        fraction: the part of the model's heads to remove, those of least importance first, in (0, 1).
        per_layer: how many heads every layer keeps at most, its most important ones.
        keep: by number of a layer, the heads that it keeps; the other layers keep all.
        score: what importance is; one of `SCORES`.
        normalize: whether a layer's gradient scores are divided by their norm.
        steps: in how many steps, scoring anew before each. 1 is one-shot.
        samples: rows to score on.
        seed: of what is drawn.

    Raises:
        ConfigurationError: if a value cannot be used.
    """

    fraction: float | None = None
    per_layer: int | None = None
    keep: Mapping[int, Sequence[int]] | None = None
    score: str = "gradient"
    normalize: bool = False
    steps: int = 1
    samples: int = 512
    seed: int = 0

    def __post_init__(self) -> None:
        given = [name for name in ("fraction", "per_layer", "keep") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ConfigurationError(
                "Say what to prune by one of: a fraction of the heads, heads per layer, heads to keep; "
                f"not by {' and '.join(given) if given else 'none of them'}."
            )
        if self.fraction is not None and not 0 < self.fraction < 1:
            raise ConfigurationError(
                f"The fraction of heads to remove must be between 0 and 1, not {self.fraction}. Without a single head "
                "a model reads every token by itself."
            )
        if self.per_layer is not None and self.per_layer < 1:
            raise ConfigurationError(f"A layer must keep at least 1 head, not {self.per_layer}; --keep can empty one.")
        if self.score not in SCORES:
            raise ConfigurationError(f"Unknown score {self.score!r}; choose one of {', '.join(SCORES)}.")
        if self.steps < 1 or self.samples < 2:
            raise ConfigurationError("steps must be at least 1 and samples at least 2.")

    @property
    def needs_scores(self) -> bool:
        """Whether heads have to be scored at all."""
        return self.keep is None


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


def parse_keep(text: str) -> dict[int, tuple[int, ...]]:
    """Reads ``0:1,2;3:`` as heads 1 and 2 of layer 0 and none of layer 3.

    Raises:
        ConfigurationError: if it is not of that form.
    """
    try:
        pairs = [part.split(":") for part in text.split(";") if part.strip()]
        found = {int(layer): tuple(int(head) for head in heads.split(",") if head.strip()) for layer, heads in pairs}
    except ValueError:
        found = {}
    if not found:
        raise ConfigurationError(
            f"{text!r} does not name heads: write 0:1,2;3: for heads 1 and 2 of layer 0, none of 3."
        )
    return found
