"""Calibration: from data of any kind to the moments of every attention layer's inputs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from ..data.batches import Batch, batched
from ..data.mixture import hold_out, rows_of
from ..data.prepare import Unlabelled, require_two
from ..data.source import DataSource, Mixture
from ..errors import CalibrationError, CollabError, first_line
from ..io.checkpoint import Checkpoint
from ..models.families import require_family
from ..models.inputs import (
    decoder_vocabulary,
    encoder_of,
    has_decoder,
    input_kind,
    longest_input,
    longest_target,
    on_device,
    with_targets,
)
from ..models.layers import native_layers
from ..models.sharded import forget_shards, sharded, sharding
from ..models.states import fast_dtype, in_fast_dtype
from ..processes import dealt, from_main, is_main_process
from ..progress import Progress, no_progress
from ..reparametrization.moments import LayerMoments
from ..steps.step import DataSummary
from . import cache as moments_cache
from .collect import Collector
from .exchange import exchanged
from .options import CalibrationOptions

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Calibration:
    """Result of `calibrate`.

    Attributes:
        moments: moments of every attention layer's inputs, by module name.
        held_out_moments: the same on the held-out rows; None if there were too few.
        held_out: held-out batches, to compare the converted model with the original; empty for a callable.
        summary: source and amount of the data, for the report.
        notes: notes for the user.
        train: batches that the moments are from, to refine the converted layers; empty for a callable.
        sources: the source of each held-out batch, if the rows are from several.
    """

    moments: dict[str, LayerMoments]
    held_out_moments: dict[str, LayerMoments] | None
    held_out: list[Batch] = field(default_factory=list)
    summary: DataSummary = field(default_factory=DataSummary)
    notes: tuple[str, ...] = ()
    train: list[Batch] = field(default_factory=list)
    sources: tuple[str, ...] = ()

    @property
    def has_rows(self) -> bool:
        """Whether there are rows to fit layers on, and others to judge them."""
        return bool(self.train and self.held_out)


Data = Unlabelled | Calibration | Callable[[PreTrainedModel], object]


def calibrate(
    checkpoint: Checkpoint | PreTrainedModel,
    data: Data = "synthetic",
    *,
    options: CalibrationOptions | None = None,
    cache: Path | None = None,
    scratch: Path | None = None,
    progress: Progress = no_progress,
) -> Calibration:
    """Computes the moments that a conversion needs, in one forward and backward pass over the data.

    Memory does not grow with the number of rows: the sums are D×D matrices in float64. Several processes divide the
    batches, and all get the moments of all of them, up to rounding in float64; but each runs the whole of a callable.
    With `CalibrationOptions.shard`, each keeps a part of the weights, and the sums of its layers.

    Args:
        checkpoint: a native model, which is not changed, with its tokenizer or image processor: needed for text, and
            better for random words.
        data: ``"synthetic"`` (random words); a `DataSource`, or a `Mixture` of several; strings, pairs of strings or
            images; batches of keyword arguments of the model; a former calibration, whose batches are used again; or a
            callable that runs the model that it is called with.
        options: calibration settings.
        cache: file to keep the moments in. If it exists, it is read instead of running the model.
        scratch: a folder, which all processes see, to keep the sums in while they are added up on a CPU, and with
            ``shard`` the moments, in files that are mapped into memory: the system writes what it has no space for.
            The moments can be used as long as the folder is there. None to keep them in memory.
        progress: progress callback, called after every batch.

    Returns:
        The moments, and the batches and summary of the data.

    Raises:
        CalibrationError: if the data cannot be read or used, an activation is NaN or infinite, or the cache belongs to
            another model, other data or other settings.
        UnsupportedArchitectureError: if collab does not convert the model.
        AlreadyConvertedError: if it is collaborative already.
    """
    options = options or CalibrationOptions()
    checkpoint = Checkpoint.of(checkpoint)
    model = checkpoint.model
    require_family(model.config)
    if callable(data):
        if cache is not None:
            raise CalibrationError("Moments of a callable cannot be cached, because its data is unknown.")
        collector = Collector(model, options.seed, options.period)
        with collector.watching(progress):
            data(model)
        moments, held_moments = collector.finish()
        batches = _Batches([], [], {"source": "callable"})
    else:
        batches = _prepare(checkpoint, data, options)
        stored = None
        if cache is not None:
            key = moments_cache.fingerprint(model, [*batches.train, *batches.held_out], options.seed)
            stored = from_main(lambda: moments_cache.read(cache, key) if cache.exists() else None)
        if stored is not None:
            return _calibration(model, *stored, batches)
        moments, held_moments = _collected(model, batches, options, scratch, progress)
        if sharding(options.shard):
            forget_shards()
            moments, held_moments = exchanged(list(native_layers(model)), moments, held_moments, scratch)
    if cache is not None and is_main_process():
        moments_cache.write(cache, key, moments, held_moments)
    return _calibration(model, moments, held_moments, batches)


@dataclass(frozen=True)
class _Batches:
    """The batches of a calibration, named as in `Calibration`."""

    train: list[Batch]
    held_out: list[Batch]
    summary: DataSummary
    sources: tuple[str, ...] = ()


def _collected(
    model: PreTrainedModel,
    batches: _Batches,
    options: CalibrationOptions,
    scratch: Path | None,
    progress: Progress,
) -> tuple[dict[str, LayerMoments], dict[str, LayerMoments] | None]:
    """The moments on batches, and on the held-out ones; of shared weights, those of this process's own layers."""
    every = [(batch, hold) for hold in (False, True) for batch in (batches.held_out if hold else batches.train)]
    run = sharded(model, dtype=fast_dtype(model)) if sharding(options.shard) else model
    collector = Collector(model, options.seed, options.period, run, scratch)
    own = _own(every, len(batches.train), evenly=run is not model)
    with in_fast_dtype(run), collector.watching(progress, total=len(own)):
        for collector.number, batch, collector.holding, collector.counting in own:
            with _accepting(model, batch):
                run(**on_device(batch, run))
    collector.add_other_processes()
    return collector.finish()


def _own(every: list[tuple[Batch, bool]], train: int, *, evenly: bool) -> list[tuple[int, Batch, bool, bool]]:
    """This process's batches: their numbers, from 1, they themselves, and whether they are held out and count.

    Args:
        every: all batches, and whether each is held out.
        train: number of those that are not, which come first.
        evenly: whether all processes run as many, and at the same time add to the same sums.
    """
    numbered = [(number, *entry) for number, entry in enumerate(every, 1)]
    parts = (numbered[:train], numbered[train:]) if evenly else (numbered,)
    return [(*entry, counts) for part in parts for _, entry, counts in dealt(part, evenly=evenly)]


def _calibration(
    model: PreTrainedModel,
    moments: dict[str, LayerMoments],
    held_out_moments: dict[str, LayerMoments] | None,
    batches: _Batches,
) -> Calibration:
    """The calibration, with notes on what was too little in its data."""
    notes = []
    if any(layer.deficient for layer in moments.values()):
        fewest = min(layer.tokens for layer in moments.values())
        notes.append(
            f"Calibration had {fewest} tokens, fewer than the width of the layers, so the moments are "
            "rank-deficient: other directions are kept only as far as the rank allows. Use more rows."
        )
        logger.warning(notes[-1])
    unknown = [name for name, layer in moments.items() if layer.unknown]
    if unknown:
        notes.append(
            f"The model's answers to the calibration data do not depend on the scores of {', '.join(unknown)}, for "
            "example because it is certain of every answer. These layers are converted without calibration (their "
            "moments are the identity). Other data may help."
        )
        logger.warning(notes[-1])
    return Calibration(
        moments,
        held_out_moments,
        batches.held_out,
        batches.summary | _amount(model, moments),
        tuple(notes),
        batches.train,
        batches.sources,
    )


def _amount(model: PreTrainedModel, moments: Mapping[str, LayerMoments]) -> DataSummary:
    """The tokens that moments are from: ``tokens``, and of an encoder-decoder also ``decoder_tokens``."""
    both = has_decoder(model)
    tokens: dict[bool, list[int]] = {False: [], True: []}  # by whether the decoder reads them
    for name, layer in native_layers(model).items():
        tokens[both and layer.kind != "encoder"].append(moments[name].tokens)
    amount: DataSummary = {}
    if tokens[False]:
        amount["tokens"] = min(tokens[False])
    if tokens[True]:
        amount["decoder_tokens"] = min(tokens[True])
    return amount


def _prepare(checkpoint: Checkpoint, data: Any, options: CalibrationOptions) -> _Batches:
    """Batches to compute moments on, and held-out batches, from data of any kind but a callable."""
    if isinstance(data, Calibration):
        return _Batches(data.train, data.held_out, data.summary, data.sources)
    model, processor = checkpoint.model, checkpoint.processor
    if not isinstance(data, str | DataSource | Mixture | Mapping):  # a mapping is refused with the rows
        data = list(data)
        if data and isinstance(data[0], Mapping):
            _check_batches(data)
            require_two(data, "batches")
            train, held_out = hold_out([with_targets(model, batch) for batch in data], options.period)
            counts = [sum(len(next(iter(batch.values()), ())) for batch in part) for part in (train, held_out)]
            return _Batches(train, held_out, {"source": "batches", "rows": sum(counts), "held_out": counts[1]})
    rows = rows_of(
        model,
        processor,
        data,
        samples=options.samples,
        held_out=lambda count: options.period,
        max_length=options.max_length,
        seed=options.seed,
    )
    held = {name: batched(model, processor, features) for name, features in rows.held_out.items()}
    return _Batches(
        batched(model, processor, rows.train),
        [batch for batches in held.values() for batch in batches],
        rows.summary,
        tuple(name for name, batches in held.items() for _ in batches) if len(held) > 1 else (),
    )


@contextmanager
def _accepting(model: PreTrainedModel, batch: Batch) -> Iterator[None]:
    """Raises a CalibrationError if the model does not accept a batch, with what it may hold."""
    try:
        yield
    except CollabError:
        raise
    except (IndexError, TypeError, ValueError) as error:
        shapes = ", ".join(f"{name} {tuple(value.shape)}" for name, value in batch.items())
        needed = ""
        if input_kind(model) == "text":
            needed = f" Rows have at most {longest_input(model)} tokens, below {encoder_of(model).config.vocab_size}."
        if has_decoder(model):
            needed += (
                f" The decoder needs decoder_input_ids, at most {longest_target(model)} tokens below "
                f"{decoder_vocabulary(model)}."
            )
        raise CalibrationError(
            f"The model does not accept a batch of {shapes}: {first_line(error)}.{needed}"
        ) from error


def _check_batches(rows: list[Any]) -> None:
    for batch in rows:
        if not isinstance(batch, Mapping) or not all(isinstance(value, Tensor) for value in batch.values()):
            raise CalibrationError("A batch must hold tensors only, by the names of the model's arguments.")
