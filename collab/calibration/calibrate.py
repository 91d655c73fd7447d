"""Calibration in one call: data of any kind → moments of every attention layer."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from ..data.features import Batch, batched
from ..data.prepare import Unlabelled, features_of, hold_out, require_two
from ..data.source import DataSource
from ..errors import CalibrationError
from ..io.options import Progress, no_progress
from ..models.families import require_family
from ..models.inputs import on_device
from ..reparametrization.moments import LayerMoments
from . import cache as moments_cache
from .collect import Collector
from .options import CalibrationOptions

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Calibration:
    """What calibration found.

    Attributes:
        moments: of every attention layer, by module name.
        held_out: the same on the rows that were held out; None if there were too few.
        batches: the held-out batches, on which the converted model is compared with the original; none for a callable.
        summary: where the data came from and how much there was, for the report.
        notes: what a user should know.
        fitted: the batches that the moments are of, on which the converted layers are refined; none for a callable.
    """

    moments: dict[str, LayerMoments]
    held_out: dict[str, LayerMoments] | None
    batches: list[Batch] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    fitted: list[Batch] = field(default_factory=list)


@dataclass(frozen=True)
class PreparedData:
    """Batches that a model takes, to be used more than once.

    Attributes:
        kept: to learn from.
        held_out: to check on.
        summary: where they came from.
    """

    kept: list[Batch]
    held_out: list[Batch]
    summary: dict[str, Any]


Data = Unlabelled | PreparedData | Callable[[PreTrainedModel], object]


def calibrate(
    model: PreTrainedModel,
    data: Data = "synthetic",
    *,
    tokenizer: Any = None,
    options: CalibrationOptions | None = None,
    cache: Path | None = None,
    progress: Progress = no_progress,
) -> Calibration:
    """Collects the moments that a conversion needs, in one pass forward and back.

    Memory does not grow with the number of rows: the sums are D×D matrices, in float64.

    Args:
        model: a native model; left as it was.
        data: ``"synthetic"`` (random vocabulary); a `DataSource`; strings, pairs of strings or images; batches of
            keyword arguments for the model; or a callable that is given the model and runs it.
        tokenizer: the model's tokenizer, or image processor. Text needs it; random vocabulary is better for it.
        options: how much.
        cache: a file that keeps the moments. If it is there, it is read instead of running the model.
        progress: called after every batch.

    Raises:
        CalibrationError: if the data cannot be read or used, an activation is not finite, or the cache belongs to
            another model, other data or other settings.
        UnsupportedArchitectureError, AlreadyConvertedError: if the model is not one that collab converts.
    """
    options = options or CalibrationOptions()
    family = require_family(model.config)
    collector = Collector(model, family, options.seed, options.period)
    if callable(data):
        if cache is not None:
            raise CalibrationError("Moments of a callable cannot be cached, because it may run anything.")
        with collector.watching(progress):
            data(model)
        prepared = PreparedData([], [], {"source": "callable"})
    else:
        prepared = data if isinstance(data, PreparedData) else prepare(model, data, tokenizer, options)
        kept, held = prepared.kept, prepared.held_out
        key = moments_cache.fingerprint(model, [*kept, *held], options.seed) if cache is not None else {}
        if cache is not None and cache.exists():
            moments, held_moments = moments_cache.read(cache, key)
            return _calibration(moments, held_moments, prepared)
        with collector.watching(progress, total=len(kept) + len(held)):
            for batches, hold in ((kept, False), (held, True)):
                collector.holding = hold
                for batch in batches:
                    model(**on_device(batch, model.device))
    moments, held_moments = collector.finish()
    if cache is not None:
        moments_cache.write(cache, key, moments, held_moments)
    return _calibration(moments, held_moments, prepared)


def _calibration(
    moments: dict[str, LayerMoments],
    held_out: dict[str, LayerMoments] | None,
    data: PreparedData,
) -> Calibration:
    notes = []
    tokens = min(one.tokens for one in moments.values())
    if any(one.deficient for one in moments.values()):
        notes.append(
            f"Calibration saw {tokens} tokens, fewer than the layers are wide, so its moments are rank-deficient: what "
            "it did not see is kept only as far as the rank allows. More rows are better."
        )
        logger.warning(notes[-1])
    unknown = [name for name, layer in moments.items() if layer.unknown]
    if unknown:
        notes.append(
            f"The model's answers to the calibration data do not depend on the scores of {', '.join(unknown)}, for "
            "example because it is certain of every answer. Their moments are the identity, which is to say that these "
            "layers are converted by their weights alone. Other data may say more."
        )
        logger.warning(notes[-1])
    summary = data.summary | {"tokens": tokens}
    return Calibration(moments, held_out, data.held_out, summary, tuple(notes), data.kept)


def prepare(model: PreTrainedModel, data: Any, tokenizer: Any, options: CalibrationOptions) -> PreparedData:
    """Reads and tokenizes data of any kind but a callable, and divides it.

    Args:
        model: that will be run on it.
        data: as for `calibrate`.
        tokenizer: the model's tokenizer, or image processor.
        options: how much.

    Raises:
        CalibrationError: if the data cannot be read or used.
    """
    if not isinstance(data, str | DataSource):
        data = list(data)
        if data and isinstance(data[0], Mapping):
            require_two(data)
            _check_batches(data)
            kept, held = hold_out([dict(batch) for batch in data], options.period)
            return PreparedData(kept, held, {"source": "rows", "rows": len(data)})
    features, summary = features_of(
        model, tokenizer, data, samples=options.samples, max_length=options.max_length, seed=options.seed
    )
    kept, held = (batched(model, tokenizer, part) for part in hold_out(features, options.period))
    return PreparedData(kept, held, summary)


def _check_batches(rows: list[Any]) -> None:
    for batch in rows:
        if not isinstance(batch, Mapping) or not all(isinstance(value, Tensor) for value in batch.values()):
            raise CalibrationError("A batch must hold tensors by the names of the model's arguments, and nothing else.")
