"""Which heads to score and to prune, and on what.

Nothing here imports torch, so that the command line can show the defaults at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..errors import ConfigurationError

SCORES: dict[str, tuple[int, str]] = {
    "gradient": (1, "mean |∂L/∂gate| over examples"),
    "attention_norm": (1, "norm of a token's attention weights"),
    "entropy": (-1, "of a token's attention weights, nats"),
    "attention_variance": (1, "of a token's attention weights over the keys, in units of uniform weights"),
    "confidence": (1, "a token's largest attention weight"),
    "output_variance": (1, "of what the head adds to the layer's output, over tokens"),
    "ablation": (1, "harm without the head"),
    "alone": (-1, "harm with no other head in the layer"),
    "like_weights": (-1, "largest cosine of A_h to another head's in the layer"),
    "like_maps": (-1, "largest mean cosine of attention weights to another head's in the layer"),
}
"""By name: whether more means that the head matters more (1) or less (-1), and what it is."""


@dataclass(frozen=True)
class RowOptions:
    """Which rows to judge heads on.

    Attributes:
        label_column: of the labels; found by its usual names if None.
        samples: rows at most.
        max_length: tokens of a row at most; None for as many as the model takes.
        seed: of the sample, of drawn answers and of masked tokens.
    """

    label_column: str | None = None
    samples: int = 512
    max_length: int | None = None
    seed: int = 0


@dataclass(frozen=True)
class ScoreOptions:
    """How to score heads.

    Attributes:
        scores: which of `SCORES`; empty for all.
        ablation_samples: rows that heads are closed on, the first ones; there are twice as many passes over them as
            heads.
        normalize: whether the gradient scores of each layer are divided by their norm (an option of Michel et al.).

    Raises:
        ConfigurationError: if there is no such score.
    """

    scores: tuple[str, ...] = ()
    ablation_samples: int = 128
    normalize: bool = False

    def __post_init__(self) -> None:
        unknown = set(self.scores) - set(SCORES)
        if unknown:
            raise ConfigurationError(f"Unknown score {sorted(unknown)[0]!r}; choose among {', '.join(SCORES)}.")
        if self.ablation_samples < 2:
            raise ConfigurationError("Ablation needs at least 2 rows.")

    def wants(self, *names: str) -> bool:
        """Whether one of these is to be computed."""
        return not self.scores or any(name in self.scores for name in names)


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
