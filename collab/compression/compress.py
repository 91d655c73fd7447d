"""Compresses an encoder: one budget for queries and keys, values, feed-forward layers and whole layers."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from transformers import PreTrainedModel

from ..calibration.calibrate import Calibration
from ..conversion.convert import convert_losslessly, require_convertible
from ..decomposition.options import NATIVE_FORM
from ..errors import BudgetError, ConfigurationError, UnsupportedArchitectureError
from ..evaluation.compare import agreement
from ..evaluation.timing import rounds_in_turn
from ..io.checkpoint import Checkpoint
from ..models.families import Family
from ..models.inputs import has_decoder
from ..models.layers import attention_layers, count_parameters, parameters
from ..progress import Progress, no_progress
from ..steps.compression import CompressedLayer, Compression
from ..steps.conversion import VocabularyCut
from ..steps.step import Count, Parameters
from .allocation import Allocation, Unit, Widths, allocate
from .blocks import unknown_feed_forward
from .candidates import Candidates
from .options import CompressionConfig, Part

logger = logging.getLogger(__name__)

FRACTIONS = (0.75, 0.5, 0.33, 0.25)
"""Budgets that a plan shows by default."""

_RECOVERED = 0.5
"""Part of a dropped layer's loss that healing recovers beyond what it recovers of narrower parts: of the demo
checkpoint at 1.8 and 2.8 times the speed, see benchmarks/compression.py."""

_ROUNDS = 41
_TRIES = 4
_CLOSE = 0.03  # relative to the speed that was asked for


@dataclass(frozen=True)
class CompressionOption:
    """What one budget would cost.

    Attributes:
        budget: the fraction that was asked for.
        reached: the fraction that is left.
        predicted_loss: as in `Compression`.
        layers: what would be left of every layer of the original.
    """

    budget: float
    reached: float
    predicted_loss: float
    layers: tuple[CompressedLayer, ...]


@dataclass(frozen=True)
class CompressionPlan:
    """What several budgets would cost.

    Attributes:
        unit: what the budgets are fractions of: ``flops`` or ``params``.
        options: what each budget would cost.
        seconds: wall-clock time.
    """

    unit: str
    options: tuple[CompressionOption, ...]
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """The plan as JSON values."""
        return asdict(self)


def compress(
    checkpoint: Checkpoint | PreTrainedModel,
    config: CompressionConfig,
    calibration: Calibration,
    *,
    progress: Progress = no_progress,
) -> Checkpoint:
    """Makes every part of an encoder smaller within one budget, in closed form, without training.

    Queries and keys become narrower heads, or shared dimensions if the budget is of parameters; values and neurons are
    selected and the projections after them refitted; whole layers are dropped where that loses less. Which part of
    which layer, and how much, follows from what every change alone costs on held-out rows. `collab.heal` then brings
    the model closer to the original.

    Args:
        checkpoint: a native transformers model of a supported family, with any of its heads. It is not changed. If
            `collab.keep_tokens` made it, what was left out counts towards a budget of parameters.
        config: the budget and which parts may change.
        calibration: result of `collab.calibrate` for this model.
        progress: called while the model runs and layers are solved.

    Returns:
        The compressed model, with a `Compression` as its report.

    Raises:
        BudgetError: if the budget cannot be reached; the message says what can.
        ConfigurationError: if more layers are to be dropped than the model has.
        CalibrationError: if there are no rows to calibrate on, or activations are NaN or infinite.
        UnsupportedArchitectureError: if collab does not convert the model, or does not know its feed-forward layers.
        CollabError: as `collab.convert`.
    """
    start = time.perf_counter()
    checkpoint = Checkpoint.of(checkpoint)
    model, cut = checkpoint.model, checkpoint.step(VocabularyCut)
    candidates = _candidates(model, config, calibration, progress)
    unit, fraction = _unit(config)
    whole = count_parameters(model) if cut is None else cut.parameters.before
    if unit == "parameters":  # those that were left out are gone already
        fraction = min(1.0, fraction * whole / count_parameters(model))
    speedup = None
    if config.speedup is None:
        allocation = _within(candidates, config, unit, fraction)
        compressed = candidates.build(allocation.widths)
    else:
        allocation, compressed, speedup = _as_fast(candidates, config, progress)
    notes = list(calibration.notes)
    widest = max(parts["feed-forward"].widths[0] for parts in candidates.parts)
    if candidates.tokens < widest:
        notes.append(
            f"The rows of the calibration have {candidates.tokens} tokens, fewer than the {widest} neurons of a layer, "
            "so its refit rests on little data. Use more rows."
        )
        logger.warning(notes[-1])
    progress("comparing with the original", 0, None)
    flops = candidates.costs("flops")
    report = Compression(
        layers=_layers(candidates, allocation.widths),
        flops=Count(round(flops.whole), round(flops.left(allocation.widths))),
        parameters=Count(whole, count_parameters(compressed)),
        predicted_loss=allocation.loss,
        agreement=agreement(model, compressed, calibration.batches),
        speedup=speedup,
        settings=config.to_dict(),
        calibration=calibration.summary,
        notes=tuple(notes),
        seconds=time.perf_counter() - start,
        parts=Parameters.of(parameters(model), parameters(compressed)),
    )
    return checkpoint.then(report, model=compressed, original=checkpoint)


def plan_compression(
    model: PreTrainedModel,
    config: CompressionConfig,
    calibration: Calibration,
    *,
    fractions: Sequence[float] = FRACTIONS,
    progress: Progress = no_progress,
) -> CompressionPlan:
    """Predicts what compressions of several budgets lose, and which widths they choose.

    Args:
        model: as in `compress`.
        config: settings; its budget says in what unit the others are, ``flops`` or ``params``.
        calibration: as in `compress`.
        fractions: the budgets.
        progress: as in `compress`.

    Returns:
        An option for every budget that can be reached.

    Raises:
        CollabError: as `compress`.
    """
    start = time.perf_counter()
    candidates = _candidates(model, config, calibration, progress)
    unit, _ = _unit(config)
    options = []
    for fraction in fractions:
        try:
            allocation = _within(candidates, config, unit, fraction)
        except BudgetError as error:
            logger.warning("%s", error)
            continue
        reached = allocation.cost / candidates.costs(unit).whole
        options.append(CompressionOption(fraction, reached, allocation.loss, _layers(candidates, allocation.widths)))
    return CompressionPlan("params" if unit == "parameters" else "flops", tuple(options), time.perf_counter() - start)


def require_compressible(model: PreTrainedModel) -> Family:
    """The family of a model to compress.

    Raises:
        UnsupportedArchitectureError: as `compress`.
        CollabError: as `collab.convert`.
    """
    family, _ = require_convertible(model)
    if has_decoder(model):
        raise UnsupportedArchitectureError(
            "Encoders with decoders cannot be compressed yet, only converted (collab convert)."
        )
    if not family.base.feed_forward_classes:
        raise unknown_feed_forward(family)
    layers = attention_layers(model)
    if any(layer.kind == "cross" for layer in layers):
        raise UnsupportedArchitectureError("Decoders with cross-attention cannot be compressed, only converted.")
    if any(layer.shares_values for layer in layers):
        raise UnsupportedArchitectureError(
            "Models whose heads share keys and values cannot be compressed, only converted (collab convert)."
        )
    return family


def _candidates(
    model: PreTrainedModel, config: CompressionConfig, calibration: Calibration, progress: Progress
) -> Candidates:
    family = require_compressible(model)
    return Candidates(model, convert_losslessly(model).model, family, calibration, config, progress)


def _unit(config: CompressionConfig) -> tuple[Unit, float]:
    """What the budget is a fraction of, and the fraction."""
    if config.speedup is not None:
        return "seconds", 1 / config.speedup
    return ("parameters", config.params) if config.params is not None else ("flops", config.flops or 1.0)


def _within(candidates: Candidates, config: CompressionConfig, unit: Unit, fraction: float) -> Allocation:
    """The allocation of least predicted loss within a budget, over the numbers of layers to drop."""
    costs = candidates.costs(unit)
    curves = candidates.curves(unit)
    options = []
    for dropped in _drops(candidates, config):
        cost = costs.left(tuple(None if number in dropped else {} for number in range(len(curves))))
        option = allocate(curves, dropped, cost, fraction * costs.whole, config.native)
        options.append((option, option.loss - _RECOVERED * config.healed * sum(dropped.values())))
    reached = [option for option in options if option[0].cost <= fraction * costs.whole]
    if not reached:
        least = min(option.cost for option, _ in options) / costs.whole
        asked, possible = (
            (f"speedup={1 / fraction:.3g}", f"it is {1 / least:.3g} times as fast")
            if unit == "seconds"
            else (f"{'params' if unit == 'parameters' else unit}={fraction:.3g}", f"{least:.3g} is left")
        )
        raise BudgetError(
            f"{asked} cannot be reached: with these parts at their smallest, {possible}. Ask for "
            f"{'less' if unit == 'seconds' else 'more'}, or let more change (native={config.native}, "
            f"only={list(config.only)}, drop_layers={config.drop_layers})."
        )
    return min(reached, key=lambda option: option[1])[0]


def _drops(candidates: Candidates, config: CompressionConfig) -> list[dict[int, float]]:
    """The sets of layers that may be dropped, those that lose least first, with their losses."""
    count = len(candidates.blocks)
    most = min(len(candidates.droppable), count - 1)
    if config.drop_layers and config.drop_layers > most:
        raise ConfigurationError(
            f"drop_layers={config.drop_layers} is impossible: the model has {count} layers, of which {most} can be "
            "dropped. One must stay, and layers that share weights, or have parameters that others lack, stay, too."
        )
    losses = candidates.losses.layers
    order = sorted(losses, key=lambda number: losses[number])
    counts = range(min(len(losses), most) + 1) if config.drop_layers is None else [config.drop_layers]
    return [{number: losses[number] for number in order[:dropped]} for dropped in counts]


def _as_fast(
    candidates: Candidates, config: CompressionConfig, progress: Progress
) -> tuple[Allocation, PreTrainedModel, float]:
    """The allocation whose model is as many times as fast as the original as the budget asks, measured.

    The times of the layers say what to build; the time of the whole model, how far to correct them.
    """
    wanted = config.speedup or 1.0
    rows = candidates.random_rows()
    asked = wanted
    best: tuple[Allocation, PreTrainedModel, float] | None = None
    for number in range(_TRIES):
        try:
            allocation = _within(candidates, config, "seconds", 1 / asked)
        except BudgetError:
            if best is None:
                raise
            break
        progress("measuring speed", number, _TRIES)
        model = candidates.build(allocation.widths)
        speed = _times_as_fast(model, candidates.native, rows)
        logger.info("For %.2f times as fast, %.2f was asked for: %.2f times.", wanted, asked, speed)
        if best is None or abs(speed - wanted) < abs(best[2] - wanted):
            best = allocation, model, speed
        if abs(speed / wanted - 1) <= _CLOSE:
            break
        asked = max(asked * wanted / speed, (1 + wanted) / 2)
    if best is None or best[2] < wanted * (1 - 2 * _CLOSE):
        fastest = "" if best is None else f"; the closest was {best[2]:.2f}"
        raise BudgetError(f"speedup={wanted:.3g} cannot be reached on this processor with these parts{fastest}.")
    return best


def _times_as_fast(model: PreTrainedModel, original: PreTrainedModel, rows: Any) -> float:
    """The ratio of the median times of two models that run in turn, each of them as often first, as `collab.bench`."""
    rounds = rounds_in_turn([(original, [rows]), (model, [rows])], _ROUNDS)
    before, after = (median(times) for times in zip(*rounds, strict=True))
    return before / after


def _layers(candidates: Candidates, widths: Widths) -> tuple[CompressedLayer, ...]:
    """What is left of every layer of the original at some widths."""
    layers = []
    for block, parts, chosen in zip(candidates.blocks, candidates.parts, widths, strict=True):
        full: dict[Part, int] = {part: narrowing.widths[0] for part, narrowing in parts.items()}
        left: dict[Part, int] = dict.fromkeys(full, 0) if chosen is None else full | dict(chosen)
        narrower = left["queries-keys"] < full["queries-keys"]
        layers.append(
            CompressedLayer(
                name=block.name,
                dropped=chosen is None,
                form="" if chosen is None else candidates.form if narrower else NATIVE_FORM,
                rank=left["queries-keys"],
                full_rank=full["queries-keys"],
                value_width=left["values"],
                full_value_width=full["values"],
                neurons=left["feed-forward"],
                full_neurons=full["feed-forward"],
            )
        )
    return tuple(layers)
