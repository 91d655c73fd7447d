"""Settings of scoring and pruning heads.

Nothing here imports torch, so that the command line can show the defaults at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..data.source import check_length
from ..errors import ConfigurationError
from ..training.options import RunOptions

SCORES: dict[str, tuple[int, str]] = {
    "gradient": (1, "mean |∂L/∂gate| over examples"),
    "attention_norm": (1, "norm of a token's attention weights"),
    "entropy": (-1, "entropy of a token's attention weights, nats"),
    "attention_variance": (1, "variance of a token's attention weights over the keys, in units of uniform weights"),
    "confidence": (1, "a token's largest attention weight"),
    "output_variance": (1, "variance of what the head adds to the layer's output, over tokens"),
    "ablation": (1, "degradation without the head"),
    "alone": (-1, "degradation with no other head in the layer"),
    "like_weights": (-1, "largest cosine of A_h to another head's in the layer"),
    "like_maps": (-1, "largest mean cosine of attention weights to another head's in the layer"),
}
"""By name: whether a higher score means that the head matters more (1) or less (-1), and what the score is."""


@dataclass(frozen=True)
class RowOptions:
    """Which rows to score heads on.

    Attributes:
        label_column: column of the labels; None to look for the usual names.
        samples: rows at most.
        max_length: tokens of a row at most; None for as many as the model takes.
        seed: seed of the sample, of drawn outputs and of masked tokens.

    Raises:
        ConfigurationError: if a value cannot be used.
    """

    label_column: str | None = None
    samples: int = 512
    max_length: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise ConfigurationError(f"samples must be at least 1, not {self.samples}.")
        check_length(self.max_length)


@dataclass(frozen=True)
class ScoreOptions:
    """How to score heads.

    Attributes:
        scores: names in `SCORES`; empty for all.
        ablation_samples: rows at most for ablation, the first ones; every head takes two passes over them.
        normalize: divide the gradient scores of each layer by their norm (an option of Michel et al.).

    Raises:
        ConfigurationError: if a value cannot be used.
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
        """Whether one of these scores is to be computed."""
        return not self.scores or any(name in self.scores for name in names)


@dataclass(frozen=True)
class PruneOptions:
    """Which heads to prune, given by exactly one of `heads`, `per_layer` and `keep`.

    Attributes:
        heads: fraction of the model's heads to remove, in (0, 1), the least important ones first.
        per_layer: heads that every layer keeps at most, the most important ones.
        keep: by layer number, the heads to keep; layers that are not named keep all.
        steps: number of steps, with new scores before each; 1 is one-shot.
        scoring: how to compute the score that ranks the heads; it names that one.
        rows: rows to score on.

    Raises:
        ConfigurationError: if a value cannot be used.
    """

    heads: float | None = None
    per_layer: int | None = None
    keep: Mapping[int, Sequence[int]] | None = None
    steps: int = 1
    scoring: ScoreOptions = field(default_factory=lambda: ScoreOptions(("gradient",)))
    rows: RowOptions = field(default_factory=RowOptions)

    def __post_init__(self) -> None:
        given = [name for name in ("heads", "per_layer", "keep") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ConfigurationError(
                "Give exactly one of --heads (heads=), --per-layer (per_layer=) and --keep (keep=), not "
                f"{' and '.join(given) if given else 'none of them'}."
            )
        if self.heads is not None and not 0 < self.heads < 1:
            raise ConfigurationError(
                f"The fraction of heads to remove must be between 0 and 1, not {self.heads}. Without heads, no "
                "token would depend on another."
            )
        if self.per_layer is not None and self.per_layer < 1:
            raise ConfigurationError(
                f"A layer must keep at least 1 head, not {self.per_layer}; --keep (keep=) can empty one."
            )
        if len(self.scoring.scores) != 1:
            raise ConfigurationError(f"One score ranks the heads; choose one of {', '.join(SCORES)}.")
        if self.steps < 1 or self.rows.samples < 2:
            raise ConfigurationError("steps must be at least 1 and samples at least 2.")

    @property
    def score(self) -> str | None:
        """Name of the score that ranks the heads; None where `keep` names them."""
        return self.scoring.scores[0] if self.keep is None else None


@dataclass(frozen=True)
class MidwayPruning:
    """Pruning in the middle of fine-tuning.

    Attributes:
        options: which heads to prune, by scores on the labelled training rows.
        at: fraction of the training before pruning, in (0, 1).

    Raises:
        ConfigurationError: if `at` is not between 0 and 1.
    """

    options: PruneOptions
    at: float = 0.5

    def __post_init__(self) -> None:
        if not 0 < self.at < 1:
            raise ConfigurationError(
                f"Pruning must come after a fraction of the training between 0 and 1, not {self.at}. To prune before "
                "or after training, use collab prune."
            )

    def halves(self, run: RunOptions) -> tuple[RunOptions, RunOptions]:
        """Settings of the training before and after pruning, each with its own learning-rate schedule."""
        before = after = None
        if run.steps is not None:
            before = round(run.steps * self.at)
            after = run.steps - before
            if not before or not after:
                raise ConfigurationError(f"{self.at} of {run.steps} steps leaves no step before or after pruning.")
        first, second = (
            replace(run, steps=steps, epochs=run.epochs * part, evaluations=max(1, round(run.evaluations * part)))
            for part, steps in ((self.at, before), (1 - self.at, after))
        )
        return first, second


def parse_keep(text: str) -> dict[int, tuple[int, ...]]:
    """Reads ``0:1,2;3:`` as heads 1 and 2 of layer 0 and none of layer 3.

    Raises:
        ConfigurationError: if the text is not of that form, or names a layer twice.
    """
    try:
        parts = [part.split(":") for part in text.split(";") if part.strip()]
        pairs = [(int(layer), tuple(int(head) for head in heads.split(",") if head.strip())) for layer, heads in parts]
    except ValueError:
        pairs = []
    if not pairs:
        raise ConfigurationError(
            f"{text!r} does not name heads: write 0:1,2;3: for heads 1 and 2 of layer 0, none of 3."
        )
    keep: dict[int, tuple[int, ...]] = {}
    for layer, heads in pairs:
        if layer in keep:
            raise ConfigurationError(
                f"{text!r} names layer {layer} twice: write all its heads in one place, {layer}:1,2."
            )
        keep[layer] = heads
    return keep
