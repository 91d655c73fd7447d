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
from ..data.prepare import Unlabelled, features_of, hold_back, require_two
from ..data.source import DataSource
from ..errors import CalibrationError, ConfigurationError
from ..models.families import require_family
from ..reparametrization.moments import LayerMoments
from . import cache as moments_cache
from .collect import Collector

logger = logging.getLogger(__name__)

OnBatch = Callable[[int, int | None], None]


@dataclass(frozen=True)
class CalibrationOptions:
    """How much to calibrate on.

    Attributes:
        samples: rows at most.
        max_length: tokens of a row at most; None for as many as the model takes.
        held_back: the part of the rows that is kept out of the moments, to see how well they carry over.
        seed: of the sample, of random vocabulary and of the random directions in the output.

    Raises:
        ConfigurationError: if a value is out of range.
    """

    samples: int = 1024
    max_length: int | None = None
    held_back: float = 0.125
    seed: int = 0

    def __post_init__(self) -> None:
        if self.samples < 2:
            raise ConfigurationError(
                f"Calibration needs at least 2 rows, one of them to hold back, not {self.samples}."
            )
        if self.max_length is not None and self.max_length < 2:
            raise ConfigurationError(f"max_length must be at least 2 tokens, not {self.max_length}.")
        if not 0 < self.held_back <= 0.5:
            raise ConfigurationError(f"held_back must be above 0 and at most 0.5, not {self.held_back}.")

    @property
    def period(self) -> int:
        """Every how-manyth row is held back."""
        return max(2, round(1 / self.held_back))


@dataclass(frozen=True)
class Calibration:
    """What calibration found.

    Attributes:
        moments: of every attention layer, by module name.
        held_back: the same on the rows that were held back; None if there were too few.
        batches: the held-back batches, on which the converted model is compared with the original; none for a callable.
        summary: where the data came from and how much there was, for the report.
        notes: what a user should know.
    """

    moments: dict[str, LayerMoments]
    held_back: dict[str, LayerMoments] | None
    batches: list[Batch] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class PreparedData:
    """Batches that a model takes, to be used more than once.

    Attributes:
        kept: to learn from.
        held_back: to check on.
        summary: where they came from.
    """

    kept: list[Batch]
    held_back: list[Batch]
    summary: dict[str, Any]


Data = Unlabelled | PreparedData | Callable[[PreTrainedModel], object]


def calibrate(
    model: PreTrainedModel,
    data: Data = "synthetic",
    *,
    tokenizer: Any = None,
    options: CalibrationOptions | None = None,
    cache: Path | None = None,
    on_batch: OnBatch | None = None,
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
        on_batch: called after every batch with the number done and, where it is known, the number in all.

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
        with collector.watching(on_batch):
            data(model)
        held: list[Batch] = []
        summary: dict[str, Any] = {"source": "callable"}
    else:
        prepared = data if isinstance(data, PreparedData) else prepare(model, data, tokenizer, options)
        kept, held, summary = prepared.kept, prepared.held_back, prepared.summary
        key = moments_cache.fingerprint(model, [*kept, *held], options.seed) if cache is not None else {}
        if cache is not None and cache.exists():
            moments, held_moments = moments_cache.read(cache, key)
            return _calibration(moments, held_moments, held, summary)
        with collector.watching(on_batch, total=len(kept) + len(held)):
            for batches, hold in ((kept, False), (held, True)):
                collector.holding = hold
                for batch in batches:
                    model(**{name: value.to(model.device) for name, value in batch.items()})
    moments, held_moments = collector.finish()
    if cache is not None:
        moments_cache.write(cache, key, moments, held_moments)
    return _calibration(moments, held_moments, held, summary)


def _calibration(
    moments: dict[str, LayerMoments],
    held_back: dict[str, LayerMoments] | None,
    batches: list[Batch],
    summary: dict[str, Any],
) -> Calibration:
    notes = []
    tokens = min(one.tokens for one in moments.values())
    if any(one.deficient for one in moments.values()):
        notes.append(
            f"Calibration saw {tokens} tokens, fewer than the layers are wide, so its moments are rank-deficient: what "
            "it did not see is kept only as far as the rank allows. More rows are better."
        )
        logger.warning(notes[-1])
    return Calibration(moments, held_back, batches, summary | {"tokens": tokens}, tuple(notes))


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
            kept, held = hold_back([dict(batch) for batch in data], options.period)
            return PreparedData(kept, held, {"source": "rows", "rows": len(data)})
    features, summary = features_of(
        model, tokenizer, data, samples=options.samples, max_length=options.max_length, seed=options.seed
    )
    kept, held = (batched(model, tokenizer, part) for part in hold_back(features, options.period))
    return PreparedData(kept, held, summary)


def _check_batches(rows: list[Any]) -> None:
    for batch in rows:
        if not isinstance(batch, Mapping) or not all(isinstance(value, Tensor) for value in batch.values()):
            raise CalibrationError("A batch must hold tensors by the names of the model's arguments, and nothing else.")
