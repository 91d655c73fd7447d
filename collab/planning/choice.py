"""The choice of form and ranks for a conversion, and what other forms would have given."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from transformers import PreTrainedModel

from ..calibration.calibrate import Calibration
from ..decomposition import FORMS, FormName
from ..models.inputs import lengths_within
from ..reparametrization.layer import LayerProblem
from ..steps.conversion import LayerConversion
from ..steps.step import Json
from .config import ConversionConfig
from .conversions import Conversions
from .cost import LayerShape
from .predict import predict

logger = logging.getLogger(__name__)

_TIMED = (16, 32, 64, 128, 256, 512)
"""Sequence lengths, in tokens, at which the speeds of forms are compared; less where a model takes less."""

_AS_FAST = 1.1
"""Times within this ratio count as equal: attention is a third of a model, and machines differ."""


@dataclass(frozen=True)
class Choice:
    """A form, and a rank for every attention layer in the order of the model.

    Attributes:
        form: decomposition form of all layers.
        ranks: R of each layer.
        explanation: how they were chosen, for the report.
    """

    form: FormName
    ranks: list[int]
    explanation: Json


def choose(model: PreTrainedModel, config: ConversionConfig, calibration: Calibration | None = None) -> Choice:
    """Chooses the form and rank of each layer for a rank or a budget.

    Args:
        model: a native model.
        config: settings, with one of `rank`, `params` and `max_error`.
        calibration: result of `collab.calibrate` for the model.

    Raises:
        RankError: if a rank is out of range or there is not one for each layer.
        BudgetError: if no rank is within the budget.
    """
    conversions = Conversions(model, config, calibration, lengths_within(model, _TIMED))
    budget = config.budget
    choices = conversions.within(budget)
    if budget.unit == "rank":
        return Choice(*choices[0], {})
    name = "params" if budget.unit == "params" else "max_error"
    explanation: Json = {"budget": {name: budget.value}}
    if budget.unit == "params":  # within an error every layer has a budget of its own
        explanation["allocation"] = conversions.allocation
    if config.form != "auto":
        return Choice(*choices[0], explanation)
    options = conversions.options([(budget, choice) for choice in choices])
    if config.optimize == "speed":
        costs: list[float] = [sum(1 / ratio for ratio in each.faster.values()) / len(each.faster) for each in options]
    elif config.params is not None:
        costs = [option.error for option in options]
    else:
        costs = [conversions.parameters(*choice) for choice in choices]
    best = costs.index(min(costs))
    if config.optimize == "speed":  # of those that are about as fast as each other, the closest to the original
        near = [number for number, cost in enumerate(costs) if cost < _AS_FAST * costs[best]]
        best = min(near, key=lambda number: options[number].error)
    chosen, ranks = choices[best]
    logger.info("Of %s, %s is the best choice.", ", ".join(form for form, _ in choices), chosen)
    slower = [str(length) for length, ratio in options[best].faster.items() if ratio < 1]
    if config.optimize == "speed" and slower:
        logger.warning("No form within the budget is as fast as the original at %s tokens.", ", ".join(slower))
    explanation |= {
        "optimize": config.optimize,
        "candidates": {
            form: {
                "ranks": ranks,
                "parameters": conversions.parameters(form, ranks),
                "faster": option.faster,
                "error": option.error,
                "cost": cost,
            }
            for (form, ranks), option, cost in zip(choices, options, costs, strict=True)
        },
        "chosen": chosen,
    }
    return Choice(chosen, ranks, explanation)


def compare_forms(problem: LayerProblem, layer: LayerConversion, config: ConversionConfig) -> Json:
    """Rank and predicted error of each form for one layer at the same number of parameters.

    Args:
        problem: the attention layer.
        layer: what it was converted to, whose own form needs no prediction.
        config: settings of the conversion.
    """
    row: Json = {}
    for form in FORMS:
        rank = LayerShape.of(problem).rank_within(form, layer.query_key.after, config.content)
        if form == layer.form and rank == layer.rank:
            row[form] = {"rank": rank, "error": layer.error if layer.score_error is None else layer.score_error}
            continue
        error = predict(problem, form, rank, config.content, config.solver_options) if rank else None
        row[form] = {"rank": rank, "error": error}
    return row
