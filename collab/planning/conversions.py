"""Conversions of a model at any rank: ranks within a budget, predicted errors and costs."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, cached_property

import torch
from transformers import PreTrainedModel

from ..calibration.calibrate import Calibration
from ..decomposition import FORMS, FormName, form_named
from ..decomposition.rank import resolve_ranks
from ..errors import BudgetError
from ..models.cache import CacheBytes, cache_bytes
from ..models.families import require_family
from ..models.layers import count_parameters, entry_of, native_layers
from ..progress import Progress, no_progress
from ..reparametrization.model import LayerProblems
from .allocation import Costs, Curve, allocate
from .budget import Budget, Part
from .config import ConversionConfig
from .cost import LayerShape
from .plan import Plan, PlanOption, Spectrum, mark_frontier, recommend, within_each
from .predict import predict, root_mean_square, smallest_rank

logger = logging.getLogger(__name__)

Ranks = tuple[FormName, list[int]]
"""A form, and R of every attention layer in the order of the model."""


class Conversions:
    """A model's conversions, which are compressions of queries and keys alone.

    Args:
        model: a native model.
        config: settings of the conversion.
        calibration: result of `collab.calibrate` for it; None to predict errors of the weights.
        lengths: sequence lengths, in tokens, to count arithmetic and to estimate time for.
        progress: called after the prediction of every layer.

    Raises:
        UnsupportedArchitectureError: if collab does not convert the model.
        AlreadyConvertedError: if it is collaborative already.
        CalibrationError: if the calibration is of another model.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        config: ConversionConfig,
        calibration: Calibration | None,
        lengths: Sequence[int],
        progress: Progress = no_progress,
    ) -> None:
        require_family(model.config)
        moments = None if calibration is None else calibration.moments
        self.problems = LayerProblems(model, moments, config.solver_options.resolve_device(model.device))
        synthetic = calibration is not None and calibration.summary.get("source") == "synthetic"
        self.allocation = config.allocation
        if config.allocation == "auto":
            self.allocation = "uniform" if synthetic else "balanced"
        self._model, self._config, self._calibration = model, config, calibration
        self._lengths, self._progress = lengths, progress
        self._forms: tuple[FormName, ...] = FORMS if config.form == "auto" else (config.form,)
        self._kinds = [layer.kind for layer in native_layers(model).values()]
        self._curves = cache(self._curves_of)

    def within(self, budget: Budget) -> list[Ranks]:
        """The ranks of each form within a budget; of those forms that it can be met with.

        Raises:
            RankError: if a rank is out of range or there is not one for each layer.
            BudgetError: if there are none; the message says what the nearest budget is.
        """
        fitting = {form: self._ranks(form, budget) for form in self._forms}
        within = [(form, self._quick(form, budget, ranks)) for form, ranks in fitting.items() if all(ranks)]
        if not within:  # only for a budget of parameters: R = K has no error
            raise BudgetError(self._nothing_fits(budget.value))
        return within

    def options(self, chosen: Sequence[tuple[Budget, Ranks]]) -> list[PlanOption]:
        """Costs and losses of ranks that were chosen within budgets. Each layer's problem is made once for all."""
        content, solver = self._config.content, self._config.solver_options
        errors: list[list[float]] = [[] for _ in chosen]
        self._progress("predicting", 0, len(self.problems))
        for number, problem in enumerate(self.problems.values()):
            for row, (_, (form, ranks)) in zip(errors, chosen, strict=True):
                row.append(predict(problem, form, ranks[number], content, solver))
            self._progress("predicting", number + 1, len(self.problems))
        return [self._option(*pair, row) for pair, row in zip(chosen, errors, strict=True)]

    def plan(self, budgets: Sequence[Budget]) -> Plan:
        """The outcomes of several budgets of one unit."""
        full_ranks = zip(self.problems, self.problems.full_ranks, strict=True)
        options = mark_frontier(self.options(within_each(budgets, self.within)))
        layers = zip(self.problems.items(), self._kinds, strict=True)
        calibration = self._calibration
        return Plan(
            unit=budgets[0].unit,
            layers={name: {"queries-keys": rank} for name, rank in full_ranks},
            options=options,
            calibration=None if calibration is None else calibration.summary,
            query_key_parameters=self._query_key,
            model_parameters=count_parameters(self._model),
            cache=self._cache,
            spectra=[Spectrum.of(name, kind, problem) for (name, problem), kind in layers],
            recommendation=recommend(options, calibration is not None, max(self._lengths)),
            refinement=_refinement(calibration),
        )

    def parameters(self, form: FormName, ranks: Sequence[int]) -> int:
        """Query/key parameters at some ranks."""
        pairs = zip(self._shapes, ranks, strict=True)
        return sum(shape.parameters(form, rank, self._config.content) for shape, rank in pairs)

    def _option(self, budget: Budget, chosen: Ranks, errors: list[float]) -> PlanOption:
        (form, ranks), content = chosen, self._config.content
        pairs = list(zip(self._shapes, ranks, strict=True))
        left, whole = self.parameters(form, ranks), count_parameters(self._model)
        flops, faster = {}, {}
        for length in self._lengths:
            work = sum(shape.flops(form, rank, content, length) for shape, rank in pairs)
            time = sum(shape.time(form, rank, content, length) for shape, rank in pairs)
            flops[length] = work / sum(shape.flops_before(length) for shape in self._shapes)
            faster[length] = sum(shape.time_before(length) for shape in self._shapes) / time
        dimensions = sum(ranks) / sum(shape.full_rank for shape in self._shapes)
        return PlanOption(
            budget=budget.value,
            reached={"rank": dimensions, "error": max(errors)}.get(budget.unit, left / self._query_key),
            form=form,
            rank=max(ranks),
            widths=tuple({"queries-keys": rank} for rank in ranks),
            error=root_mean_square(errors),
            layer_errors=errors,
            query_key=left / self._query_key,
            model=(whole - self._query_key + left) / whole,
            flops=flops,
            faster=faster,
            cache=self._cache_of(ranks),
            step=self._step(form, ranks) if self._cache is not None else None,
        )

    def _step(self, form: FormName, ranks: Sequence[int]) -> float:
        """The parameters that a token being written reads, relative to the original's."""
        content = self._config.content
        layers = [layer for layer in zip(self._shapes, ranks, self._kinds, strict=True) if layer[-1] != "encoder"]
        left = sum(shape.read_by_a_step(form, rank, content, kind) for shape, rank, kind in layers)
        before = sum(shape.read_by_a_step(None, rank, content, kind) for shape, rank, kind in layers)
        return (self._read_besides + left) / (self._read_besides + before)

    @cached_property
    def _read_besides(self) -> int:
        """Parameters that a token being written reads besides queries and keys: of layers and vocabulary."""
        layers = {name: layer for name, layer in native_layers(self._model).items() if layer.kind != "encoder"}
        entries = {entry_of(self._model, name) for name in layers}
        read = sum(count_parameters(self._model.get_submodule(entry)) for entry in entries)
        for layer in layers.values():
            read -= layer.query_key_parameters
            if layer.kind == "cross":  # values of what is read are in the cache
                read -= count_parameters(layer.projection("value"))
        return read + count_parameters(self._model.get_output_embeddings())

    @cached_property
    def _shapes(self) -> list[LayerShape]:
        return [LayerShape.of(problem) for problem in self.problems.values()]

    @cached_property
    def _query_key(self) -> int:
        """Query/key parameters of the original."""
        return sum(shape.parameters_before for shape in self._shapes)

    @cached_property
    def _cache(self) -> CacheBytes | None:
        return cache_bytes(self._model)

    def _cache_of(self, ranks: list[int]) -> CacheBytes | None:
        """The cache of a conversion, whose values are the original's. The keys of an encoder are in no cache."""
        if self._cache is None:
            return None
        after = dict.fromkeys(("decoder", "cross"), 0)
        before = dict(after)
        for shape, kind, rank in zip(self._shapes, self._kinds, ranks, strict=True):
            if kind != "encoder":
                after[kind] += shape.cached_numbers(rank, self._config.content)
                before[kind] += shape.key_dims
        return replace(
            self._cache,
            keys=self._cache.keys * after["decoder"] // max(1, before["decoder"]),
            cross_keys=self._cache.cross_keys * after["cross"] // max(1, before["cross"]),
        )

    def _ranks(self, form: FormName, budget: Budget) -> list[int]:
        """The ranks of a form within a budget; 0 where it cannot be met.

        A balanced budget of parameters is divided for the least sum of the layers' squared relative errors, in closed
        form (`LayerProblem.decay`), each relative to the layer's own scores. Weighting layers by the effect of their
        scores on the model's output measured far worse (docs/benchmarks/calibration.md).
        """
        content = self._config.content
        if budget.unit == "rank":
            return resolve_ranks(budget.value, self.problems.full_ranks)
        if budget.unit == "error":
            return [
                smallest_rank(problem, form, budget.value, content, self._config.solver_options, self._config.seed)
                for problem in self.problems.values()
            ]
        if self.allocation == "uniform":
            return [shape.rank_within(form, budget.value * shape.parameters_before, content) for shape in self._shapes]
        costs = self._costs(form)
        most = math.floor(budget.value * costs.whole)
        allocation = allocate(self._curves(form), {}, costs.full, most, exhaust=True)
        return [layer["queries-keys"] if layer and allocation.cost <= most else 0 for layer in allocation.widths]

    def _costs(self, form: FormName) -> Costs:
        """Query/key parameters in one form."""

        def parameters(number: int, widths: Mapping[Part, int]) -> int:
            shape = self._shapes[number]
            return shape.parameters(form, widths.get("queries-keys", shape.full_rank), self._config.content)

        full = sum(parameters(number, {}) for number in range(len(self._shapes)))
        return Costs(self._query_key, full, parameters)

    def _curves_of(self, form: FormName) -> list[list[Curve]]:
        """By layer, parameters and squared error at every rank."""
        costs = self._costs(form)
        curves = []
        for number, (problem, shape) in enumerate(zip(self.problems.values(), self._shapes, strict=True)):
            with torch.no_grad():
                errors = problem.decay(form).tolist()
            curves.append([costs.curve(number, {"queries-keys": {rank: errors[rank] for rank in shape.ranks[::-1]}})])
        return curves

    def _quick(self, form: FormName, budget: Budget, ranks: list[int]) -> list[int]:
        """Ranks lowered to widths that cost no speed, if speed is to be optimized within a budget of parameters.

        The fused kernel takes heads of d dimensions (`collab.modeling.collab_kernel`), and heads of equal widths need
        no padding.
        """
        if self._config.form != "auto" or self._config.optimize != "speed" or budget.unit != "params":
            return ranks
        pairs = zip(ranks, self._shapes, strict=True)
        if form_named(form).separate:
            return [max(rank - rank % shape.num_heads, min(rank, shape.num_heads)) for rank, shape in pairs]
        return [min(rank, shape.head_dim) for rank, shape in pairs]

    def _nothing_fits(self, params: float) -> str:
        """The message for a budget below the smallest rank, with the smallest possible budget."""
        content, rank = self._config.content, self._shapes[0].ranks[0]
        least = min(
            max(shape.parameters(form, shape.ranks[0], content) / shape.parameters_before for shape in self._shapes)
            for form in self._forms
        )
        return (
            f"No rank fits {params:g} of the query/key parameters: at rank {rank} a layer keeps {least:.4f} of them "
            f"already. Keep at least {math.ceil(least * 1e4) / 1e4:g} (params, --params)."
        )


def _refinement(calibration: Calibration | None) -> str:
    """The refinement after a conversion, in words."""
    if calibration is None or not calibration.has_rows:
        return "Nothing is refined: that needs rows to calibrate on."
    return (
        "Predicted errors are those before refinement, by which a conversion then brings the output of each attention "
        "layer closer to the original's, at the same size, on the rows of the calibration."
    )
