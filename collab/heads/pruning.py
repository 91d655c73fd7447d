"""Pruning by scores, in one step or in several with new scores before each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from transformers import PreTrainedModel

from ..conversion.convert import convert_losslessly
from ..errors import ConfigurationError, DataError
from ..io.checkpoint import Checkpoint
from ..modeling.collab_model import CollaborativeMixin
from ..models.layers import attention_layers, parameters
from ..progress import Progress, no_progress
from ..steps.pruning import Pruning
from ..steps.step import Parameters
from .options import SCORES, PruneOptions
from .removal import check_keep, check_separable, remove_heads
from .rows import HeadRows
from .scores import living_heads, score_rows
from .selection import Keep, by_number, least_important, most_important_per_layer


def prune(
    checkpoint: Checkpoint | PreTrainedModel,
    which: PruneOptions | Mapping[str, Sequence[int]],
    rows: HeadRows | None = None,
    *,
    progress: Progress = no_progress,
) -> Checkpoint:
    """Removes heads from a model for good; the model passed stays unchanged.

    An original is converted losslessly first: one kind of model holds any set of heads.

    Args:
        checkpoint: original or converted, of any supported family. Where passes share a layer's weights (ALBERT), a
            head is removed from all of them.
        which: options that say how to choose the heads; or, by layer name, the heads to keep, as numbers in the
            original. Layers that are not named keep all. A layer may lose all its heads; its output is then the bias of
            its output projection.
        rows: rows to score on (`collab.head_rows`); not needed where the heads are named.
        progress: called during scoring.

    Returns:
        A collaborative model, with a `Pruning` as its report.

    Raises:
        ConfigurationError: if a layer or a head does not exist, or no head of the whole model would be left.
        DataError: if there are no rows to score on.
        UnsupportedArchitectureError: if several heads share keys and values.
        CollabError: as `collab.convert` for an original.
    """
    before = Checkpoint.of(checkpoint)
    layers = attention_layers(before.model)
    count = living_heads(layers)
    keep: Mapping[str, Sequence[int]] | None
    if isinstance(which, PruneOptions):
        options, keep = which, None if which.keep is None else by_number(layers, which.keep)
    else:
        options, keep = PruneOptions(keep={}), which
    if options.heads is not None and round(count * options.heads) in (0, count):
        raise ConfigurationError(
            f"{options.heads} of {count} heads rounds to {round(count * options.heads)} heads; at least one "
            "must be removed and one kept."
        )
    if keep is not None:
        check_keep(before.model, keep)
    check_separable(layers)
    current = before if isinstance(before.model, CollaborativeMixin) else convert_losslessly(before)
    model = current.model
    if keep is not None:
        model = remove_heads(model, keep)
    elif rows is None:
        raise DataError("Scoring heads needs data (--data). Give some, or name the heads to keep.")
    else:
        for step in range(1, options.steps + 1):
            scored = replace(current, model=model)
            model = remove_heads(model, _next(scored, rows, options, count, step, progress))
    after = attention_layers(model)
    report = Pruning(
        heads_before=count,
        heads_after=living_heads(after),
        heads={layer.name: list(layer.heads) for layer in after},
        parameters=Parameters.of(parameters(before.model), parameters(model)),
        score=options.score,
        greatest=options.score is not None and SCORES[options.score][0] < 0,
        normalize=options.scoring.normalize,
        steps=options.steps,
        data=rows.summary if rows is not None and options.score else None,
    )
    return current.then(report, model=model, original=before)


def _next(
    current: Checkpoint, rows: HeadRows, options: PruneOptions, before: int, step: int, progress: Progress
) -> Keep:
    """The heads to keep after a step; every step removes an equal part."""
    layers = attention_layers(current.model)
    importance = score_rows(current, rows, options.scoring, progress).importance(options.scoring.scores[0])
    if options.heads is not None:
        target = before - round(before * options.heads * step / options.steps)
        return least_important(importance, living_heads(layers) - target)
    assert options.per_layer is not None
    most = max(len(layer.heads) for layer in layers)
    count = options.per_layer + round((most - options.per_layer) * (1 - 1 / (options.steps - step + 1)))
    return most_important_per_layer(importance, count)
