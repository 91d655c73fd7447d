"""Pruning by scores, in one step or in several with new scores before each."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from transformers import PreTrainedModel

from ..errors import ConfigurationError, DataError
from ..io.load import Checkpoint
from ..io.options import Progress, no_progress
from ..models.layers import head_layers, parameters
from .options import PruneOptions, ScoreOptions
from .removal import prune
from .rows import HeadRows
from .scores import living_heads, score_rows
from .selection import Keep, by_number, least_important, most_important_per_layer


@dataclass(frozen=True)
class Pruning:
    """A pruned model.

    Attributes:
        model: the pruned model.
        record: what was done, as JSON values: heads before, after and by layer, parameters, data.
    """

    model: PreTrainedModel
    record: dict[str, Any]


def prune_by(
    loaded: Checkpoint, rows: HeadRows | None, options: PruneOptions, progress: Progress = no_progress
) -> Pruning:
    """Prunes heads by score or by name; the model passed stays unchanged.

    Args:
        loaded: the model, original or converted.
        rows: rows to score on; not needed where the heads are named.
        options: what to prune.
        progress: called during scoring.

    Raises:
        ConfigurationError: if a head does not exist or none would be left.
        DataError: if there are no rows to score on.
    """
    layers = head_layers(loaded.model)
    before = living_heads(layers)
    if options.heads is not None and round(before * options.heads) in (0, before):
        raise ConfigurationError(
            f"{options.heads} of {before} heads rounds to {round(before * options.heads)} heads; at least one "
            "must be removed and one kept."
        )
    model: PreTrainedModel = loaded.model
    if options.keep is not None:
        model = prune(model, by_number(layers, options.keep))
    else:
        if rows is None:
            raise DataError("Scoring heads needs data (--data). Give some, or name the heads to keep.")
        for step in range(1, options.steps + 1):
            current = replace(loaded, model=model)
            model = prune(model, _next(current, rows, options, before, step, progress))
    after = head_layers(model)
    record = {
        "heads_before": before,
        "heads_after": living_heads(after),
        "heads": {layer.name: list(layer.heads) for layer in after},
        "score": options.score if options.needs_scores else None,
        "normalize": options.normalize,
        "steps": options.steps,
        "data": rows.summary if rows is not None and options.needs_scores else None,
        "parameters": {"before": parameters(loaded.model), "after": parameters(model)},
    }
    return Pruning(model, record)


def _next(
    current: Checkpoint, rows: HeadRows, options: PruneOptions, before: int, step: int, progress: Progress
) -> Keep:
    """The heads to keep after a step; every step removes an equal part."""
    layers = head_layers(current.model)
    settings = ScoreOptions((options.score,), normalize=options.normalize)
    importance = score_rows(current, rows, settings, progress).importance(options.score)
    if options.heads is not None:
        target = before - round(before * options.heads * step / options.steps)
        return least_important(importance, living_heads(layers) - target)
    assert options.per_layer is not None
    most = max(len(layer.heads) for layer in layers)
    count = options.per_layer + round((most - options.per_layer) * (1 - 1 / (options.steps - step + 1)))
    return most_important_per_layer(importance, count)
