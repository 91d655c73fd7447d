"""Compresses a model: one budget for queries and keys, values, feed-forward layers and whole layers."""

from __future__ import annotations

import contextlib
import copy
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial

from transformers import PreTrainedModel

from ..calibration.calibrate import Calibration
from ..decomposition.options import NATIVE_FORM
from ..errors import BudgetError, ConfigurationError
from ..evaluation.compare import agreement_by_source
from ..io.checkpoint import Checkpoint
from ..models.assembly import in_dtype
from ..models.layers import count_parameters, parameters
from ..models.states import in_fast_dtype
from ..planning.allocation import Widths
from ..planning.budget import Budget, Part
from ..planning.plan import PlanOption
from ..processes import divided, from_main
from ..progress import Progress, no_progress
from ..steps.compression import CompressedLayer, Compression, Trial
from ..steps.conversion import VocabularyCut
from ..steps.step import Count, Parameters
from .candidates import Candidates
from .choice import Choice, Once
from .compressions import Compressions
from .options import CompressionConfig
from .refit import refit
from .timed import feasible
from .trials import Healer, lowest

logger = logging.getLogger(__name__)

Timer = Callable[[PreTrainedModel], float]
"""Measures how many times as fast as the original a model is."""

_TRIES = 4
_CLOSE = 0.03  # relative to the speed that was asked for


def compress(
    checkpoint: Checkpoint | PreTrainedModel,
    config: CompressionConfig,
    calibration: Calibration,
    *,
    timer: Timer | None = None,
    healer: Healer | None = None,
    once: Once | None = None,
    progress: Progress = no_progress,
) -> Checkpoint:
    """Makes every part of a model smaller within one budget, in closed form, without training.

    Queries and keys become narrower heads, or shared dimensions if the budget is of parameters; values and neurons are
    selected and the projections after them refitted; whole layers are dropped where that loses less. Which part of
    which layer, and how much, follows from what every change alone costs on held-out rows: of a model that writes, the
    divergence of its next token, given targets or what the original writes. `collab.heal` then brings
    the model closer to the original.

    Parameters that stay, or are narrower, keep their `requires_grad`; those of queries and keys, which are new in every
    layer, are trainable, as after a conversion.

    Several processes, which all call this, divide the rows, the parts of the layers and what is measured of them, and
    all get the same model.

    Args:
        checkpoint: a native transformers model of a supported family, with any of its heads. It is not changed. If
            `collab.keep_tokens` made it, what was left out counts towards a budget of parameters.
        config: the budget and which parts may change.
        calibration: result of `collab.calibrate` for this model.
        timer: measures for `CompressionConfig.speedup` how many times as fast as the original a model is; None to
            measure both in PyTorch.
        healer: heals a model in place for a short time, to measure with how many dropped layers it comes closest to
            the original, where `drop_layers` leaves that open; only with `healed=True`. None to predict the number.
        once: called with a function that chooses the widths, and returns its `Choice`, or what it returned in an
            earlier call, which was interrupted: what was measured may differ. None to choose.
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
    if healer is not None and not config.healed:
        raise ConfigurationError("healer is of models that are to be healed: pass healed=True in the config.")
    model, cut = checkpoint.model, checkpoint.step(VocabularyCut)
    config = feasible(config, model)

    def choose() -> Choice:
        if config.speedup is not None:
            return _as_fast(compressions, config.speedup, timer, healer, progress)
        dropped, trials = _layers_to_drop(compressions, config.budget, healer, progress)
        option = compressions.within(config.budget, dropped)
        return Choice(option.widths, option.error, trials)

    with in_fast_dtype(model):
        compressions = Compressions(model, config, calibration, progress, cut)
        candidates = compressions.candidates
        choice = choose() if once is None else once(choose)
        compressed = candidates.build(choice.widths)
        compressed, refitted = _refitted(compressed, candidates, choice.widths, calibration, config, progress)
        progress("comparing with the original", 0, None)
        agreed, by_source = agreement_by_source(model, compressed, calibration.held_out, calibration.sources)
    compressed = in_dtype(compressed, model.dtype)
    notes = list(calibration.notes)
    widest = max(full["feed-forward"] for full in candidates.full)
    if candidates.tokens < widest:
        notes.append(
            f"The rows of the calibration have {candidates.tokens} tokens, fewer than the {widest} neurons of a layer, "
            "so its refit rests on little data. Use more rows."
        )
        logger.warning(notes[-1])
    flops, steps = candidates.costs("flops"), compressions.step_bytes(choice.widths)
    report = Compression(
        layers=_layers(candidates, choice.widths),
        flops=Count(round(flops.whole), round(flops.left(choice.widths))),
        parameters=Count(compressions.parameters_before, count_parameters(compressed)),
        predicted_loss=choice.predicted_loss,
        agreement=agreed,
        agreement_by_source=by_source,
        speedup=choice.speedup,
        reading_speedup=choice.reading_speedup,
        step_speedup=choice.step_speedup,
        step_bytes=None if steps is None else steps[0],
        step_bytes_with_vocabulary=None if steps is None else steps[1],
        refitted=refitted,
        trials=choice.trials,
        settings=config.to_dict(),
        calibration=calibration.summary,
        notes=tuple(notes),
        seconds=time.perf_counter() - start,
        parts=Parameters.of(parameters(model), parameters(compressed)),
    )
    return checkpoint.then(report, model=compressed, original=checkpoint)


def _refitted(
    compressed: PreTrainedModel,
    candidates: Candidates,
    widths: Widths,
    calibration: Calibration,
    config: CompressionConfig,
    progress: Progress,
) -> tuple[PreTrainedModel, int]:
    """A compressed model with output projections refitted in sequence, and their number; itself if that is no closer.

    Healing ends farther from the original when it starts from the refitted projections (docs/benchmarks/unseen.md).
    """
    if config.healed:
        return compressed, 0
    model = candidates.build(widths)
    count = refit(model, candidates.model, candidates.blocks, widths, calibration.train, progress)
    if count == 0:
        return compressed, 0
    after, before = divided((model, compressed), lambda own: [candidates.held_out.loss(each) for each in own])
    return (model, count) if after < before else (compressed, 0)


def _layers_to_drop(
    compressions: Compressions, budget: Budget, healer: Healer | None, progress: Progress
) -> tuple[int | None, tuple[Trial, ...]]:
    """The number of layers to drop within a budget, as healing for a short time says, and what was tried.

    None where nothing is to be tried.

    Raises:
        BudgetError: as `Compressions.within`.
    """
    if healer is None:
        return None, ()
    options = compressions.likely(budget)
    if len(options) == 1:
        return None, ()
    candidates = compressions.candidates
    counts = [option.widths.count(None) for option in options]

    def healed_loss(place: int) -> float:
        progress("trying numbers of dropped layers", 0, None)
        model = copy.deepcopy(candidates.build(options[place].widths))  # it shares weights with the original
        healer(model)
        loss = from_main(lambda: candidates.held_out.loss(model))
        logger.info("%d dropped layers: loss %.5f after healing for a short time.", counts[place], loss)
        return loss

    predicted = counts.index(compressions.within(budget).widths.count(None))
    measured = lowest(len(options), predicted, healed_loss)
    best = min(measured, key=lambda place: measured[place])
    trials = tuple(Trial(counts[place], options[place].error, loss) for place, loss in sorted(measured.items()))
    return counts[best], trials


def _as_fast(
    compressions: Compressions, wanted: float, timer: Timer | None, healer: Healer | None, progress: Progress
) -> Choice:
    """The widths whose model is as many times as fast as the original as the budget asks, measured.

    The times of the layers in PyTorch say what to build; the time of the whole model, how far to correct them.
    """
    candidates, timed = compressions.candidates, timer is None
    asked = wanted
    if timer is None:
        timer = candidates.timed.times_as_fast
    else:
        whole = from_main(partial(timer, candidates.native))
        if whole >= wanted * (1 - _CLOSE):
            raise BudgetError(
                f"speedup={wanted:.3g} needs no compression: the original is {whole:.2f} times as fast already in this "
                "runtime and precision (collab export)."
            )
        asked = wanted / whole
    best: tuple[PlanOption, PreTrainedModel, float] | None = None
    with _in_pytorch(wanted, asked):
        dropped, trials = _layers_to_drop(compressions, Budget("seconds", 1 / asked), healer, progress)
        option = compressions.within(Budget("seconds", 1 / asked), dropped)
    for number in range(_TRIES):
        progress("measuring speed", number, _TRIES)
        model = candidates.build(option.widths)
        speed = from_main(partial(timer, model))
        logger.info("For %.2f times as fast, %.2f was asked for: %.2f times.", wanted, asked, speed)
        if best is None or abs(speed - wanted) < abs(best[2] - wanted):
            best = option, model, speed
        if abs(speed / wanted - 1) <= _CLOSE:
            break
        asked = max(asked * wanted / speed, (1 + asked) / 2)
        try:
            option = compressions.within(Budget("seconds", 1 / asked), dropped)
        except BudgetError:
            break
    if best is None or best[2] < wanted * (1 - 2 * _CLOSE):
        fastest = "" if best is None else f"; the closest was {best[2]:.2f}"
        raise BudgetError(f"speedup={wanted:.3g} cannot be reached on this processor with these parts{fastest}.")
    option, model, speed = best
    fast = candidates.timed.reading_and_step(model) if timed else None
    return Choice(option.widths, option.error, trials, speed, *(fast or ()))


@contextlib.contextmanager
def _in_pytorch(wanted: float, asked: float) -> Iterator[None]:
    """Says of a speed in PyTorch that cannot be reached for which speed in a runtime it would take."""
    try:
        yield
    except BudgetError as error:
        if asked == wanted:
            raise
        raise BudgetError(
            f"speedup={wanted:.3g} in this runtime and precision takes a model that is {asked:.3g} times as fast as "
            f"the original in PyTorch, where {error}"
        ) from error


def _layers(candidates: Candidates, widths: Widths) -> tuple[CompressedLayer, ...]:
    """The layers of the original, with the widths that are left."""
    layers = []
    for block, full, chosen in zip(candidates.blocks, candidates.full, widths, strict=True):
        left: Mapping[Part, int] = dict.fromkeys(full, 0) if chosen is None else chosen
        narrower = any(left[part] < full[part] for part in full if part.endswith("queries-keys"))
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
                cross_rank=left.get("cross-queries-keys"),
                full_cross_rank=full.get("cross-queries-keys"),
                cross_value_width=left.get("cross-values"),
                full_cross_value_width=full.get("cross-values"),
            )
        )
    return tuple(layers)
