"""Compressions of a model within budgets: which widths, which layers to drop, and what that is predicted to lose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

from transformers import PreTrainedModel

from ..calibration.calibrate import Calibration
from ..conversion.convert import convert_losslessly, require_convertible
from ..errors import BudgetError, CalibrationError, ConfigurationError, UnsupportedArchitectureError
from ..models.families import Family
from ..models.inputs import has_decoder
from ..models.layers import attention_layers, count_bytes, count_parameters, parameters
from ..planning.allocation import Allocation, Costs, Curve, Widths, allocate
from ..planning.budget import OF_ANOTHER, OF_ITSELF, Budget
from ..planning.plan import Plan, PlanOption, mark_frontier, within_each
from ..processes import from_main
from ..progress import Progress
from ..steps.conversion import VocabularyCut
from ..steps.step import Count
from .blocks import unknown_feed_forward
from .candidates import Candidates
from .options import CompressionConfig
from .trials import RECOVERED, Drop, likely


def require_compressible(model: PreTrainedModel) -> Family:
    """The family of a model to compress.

    Raises:
        UnsupportedArchitectureError: as `compress`.
        CollabError: as `collab.convert`.
    """
    family, _ = require_convertible(model)
    if not family.base.feed_forward_classes:
        raise unknown_feed_forward(family)
    layers = attention_layers(model)
    if any(layer.kind == "cross" for layer in layers) and not has_decoder(model):
        raise UnsupportedArchitectureError(
            "A decoder with cross-attention cannot be compressed without its encoder, only converted."
        )
    return family


def require_rows(calibration: Calibration | None) -> Calibration:
    """The calibration of a compression.

    Raises:
        CalibrationError: if there is none.
    """
    if calibration is None:
        raise CalibrationError(
            "Compression needs rows that the model runs on: give text, images or other data with --calibration "
            "(calibration=)."
        )
    return calibration


class Compressions:
    """A model's compressions.

    Args:
        model: the original.
        config: settings of the compression.
        calibration: rows and moments.
        progress: called while the model runs.
        cut: the tokens that were left out before, if any were: parameters are counted from before that.

    Raises:
        CollabError: as `compress`.

    Attributes:
        parameters_before: of the original with all its tokens.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        config: CompressionConfig,
        calibration: Calibration | None,
        progress: Progress,
        cut: VocabularyCut | None = None,
    ) -> None:
        calibration = require_rows(calibration)
        family = require_compressible(model)
        lossless = convert_losslessly(model).model
        self.candidates = Candidates(model, lossless, family, calibration, config, progress)
        self._config, self._calibration, self._cut = config, calibration, cut
        self.parameters_before = count_parameters(model) if cut is None else cut.parameters.before
        self._check_parts()

    def _check_parts(self) -> None:
        """Raises a ConfigurationError if the model has none of the parts that may change, or does not write."""
        config, candidates = self._config, self.candidates
        if not any(candidates.changing) and not ("layers" in config.only and candidates.droppable):
            raise ConfigurationError(
                f"only={list(config.only)} with stacks={list(config.stacks)} names nothing that this model has."
            )
        if config.step_bytes is not None and all(block.stack == "encoder" for block in candidates.blocks):
            raise ConfigurationError(
                "step_bytes is of models that write, and this one has no decoder. Use flops, params or speedup."
            )

    def within(self, budget: Budget, dropped: int | None = None) -> PlanOption:
        """The widths of least predicted loss within a budget.

        Args:
            budget: what may be left.
            dropped: number of layers to drop; None for that of least predicted loss.

        Raises:
            BudgetError: if the budget cannot be reached; the message says what can.
        """
        drops = self._within(budget, dropped)
        recovered = RECOVERED if self._config.healed else 0.0
        return self._option(budget, min(drops, key=lambda drop: drop.loss(recovered)).allocation)

    def likely(self, budget: Budget) -> list[PlanOption]:
        """The numbers of layers to drop that may lose least once the model is healed, fewest first.

        Raises:
            BudgetError: as `within`.
        """
        return [self._option(budget, drop.allocation) for drop in likely(self._within(budget))]

    def _within(self, budget: Budget, dropped: int | None = None) -> list[Drop]:
        """The widths of least predicted loss within a budget, for every number of dropped layers that can reach it."""
        costs, curves, drops = self.candidates.costs(budget.unit), self.candidates.curves(budget.unit), self._drops
        drops = [losses for losses in drops if dropped in (None, len(losses))]
        return from_main(lambda: self._reaching(budget, costs, curves, drops))  # all go on with the same widths

    def _reaching(
        self, budget: Budget, costs: Costs, curves: Sequence[Sequence[Curve]], drops: Sequence[Mapping[int, float]]
    ) -> list[Drop]:
        """See `_within`; from what was measured."""
        most = min(1.0, budget.value / self._left(budget)) * costs.whole
        reached, least = [], costs.whole
        for losses in drops:
            cost = costs.left(tuple(None if number in losses else {} for number in range(len(curves))))
            allocation = allocate(curves, losses, cost, most, alike=self._alike if self._config.native else ())
            least = min(least, allocation.cost)
            if allocation.cost <= most:
                reached.append(Drop(allocation, sum(losses.values())))
        if not reached:
            raise BudgetError(self._out_of_reach(budget, least / costs.whole))
        return reached

    def plan(self, budgets: Sequence[Budget]) -> Plan:
        """The outcomes of several budgets of one unit."""
        options = within_each(budgets, lambda budget: [self.within(budget)])
        return Plan(
            unit=budgets[0].unit,
            layers={block.name: own for block, own in zip(self.candidates.blocks, self.candidates.full, strict=True)},
            options=mark_frontier([option for _, option in options]),
            calibration=self._calibration.summary,
            query_key_parameters=self._query_key,
            model_parameters=self.parameters_before,
        )

    def _left(self, budget: Budget) -> float:
        """What is there before any compression, of the original with all its tokens, in the unit of a budget."""
        return count_parameters(self.candidates.native) / self.parameters_before if budget.unit == "params" else 1.0

    @cached_property
    def _alike(self) -> list[list[int]]:
        """The layers whose feed-forward layers have one width in the original's class."""
        alike: dict[str | None, list[int]] = {}
        for number, (block, changing) in enumerate(zip(self.candidates.blocks, self.candidates.changing, strict=True)):
            if changing:
                alike.setdefault(block.width_name, []).append(number)
        return list(alike.values())

    @cached_property
    def _query_key(self) -> int:
        return parameters(self.candidates.native)["query_key"]

    def _option(self, budget: Budget, allocation: Allocation) -> PlanOption:
        candidates, length = self.candidates, self._config.length
        widths = tuple(
            None if chosen is None else full | dict(chosen)
            for full, chosen in zip(candidates.full, allocation.widths, strict=True)
        )
        kept = [(own, chosen) for own, chosen in zip(candidates.parts, widths, strict=True) if chosen is not None]
        of_scores = (OF_ITSELF[0], OF_ANOTHER[0])
        ranks = [(own[part], chosen[part]) for own, chosen in kept for part in of_scores if part in own]
        query_key = sum(part.parameters(rank) for part, rank in ranks)
        flops, params = candidates.costs("flops"), candidates.costs("params")
        reached = allocation.cost / candidates.costs(budget.unit).whole * self._left(budget)
        steps = self.step_bytes(widths)
        return PlanOption(
            budget=budget.value,
            reached=reached,
            form=candidates.form,
            rank=max(rank for _, rank in ranks),
            widths=widths,
            error=allocation.loss,
            layer_errors=[],
            query_key=query_key / self._query_key,
            model=params.left(widths) / params.whole * self._left(Budget("params", 1.0)),
            flops={length: flops.left(widths) / flops.whole},
            faster={length: 1 / reached} if budget.unit == "seconds" else {},
            step=None if steps is None else steps[1].ratio,
        )

    def step_bytes(self, widths: Widths) -> tuple[Count, Count] | None:
        """Bytes of weights that a token being written reads: of layers, and with the vocabulary's; None for encoders.

        The projection to the vocabulary stays as it is, but for tokens that were left out before.
        """
        costs = self.candidates.costs("step_bytes")
        if not costs.whole:
            return None
        size = self.candidates.native.dtype.itemsize
        before, after = size * round(costs.whole), size * round(costs.left(widths))
        head = self.candidates.native.get_output_embeddings()  # none in models without a head
        vocabulary = 0 if head is None else count_bytes(head.parameters())
        whole = vocabulary if self._cut is None else vocabulary * self._cut.tokens.before // self._cut.tokens.after
        return Count(before, after), Count(before + whole, after + vocabulary)

    @cached_property
    def _drops(self) -> list[dict[int, float]]:
        """The sets of layers that may be dropped, those that lose least first, with their losses."""
        config, candidates = self._config, self.candidates
        room = {
            place: min(len(stack) - 1, len(set(stack) & set(candidates.droppable))) for place, stack in self._stacks
        }
        most = sum(room.values())
        if config.drop_layers and config.drop_layers > most:
            of = "" if len(config.stacks) > 1 or len(room) == 1 else f" in its {config.stacks[0]}"
            raise ConfigurationError(
                f"drop_layers={config.drop_layers} is impossible: the model has {len(candidates.blocks)} layers, of "
                f"which {most} can be dropped{of}. One must stay, of an encoder and of a decoder each, and layers that "
                "share weights, have parameters that others lack, or states that a head reads, stay, too."
            )
        losses = candidates.losses_without
        order = []
        for number in sorted(losses, key=lambda number: losses[number]):
            place = next(place for place, stack in self._stacks if number in stack)
            if room[place]:
                room[place] -= 1
                order.append(number)
        counts = range(len(order) + 1) if config.drop_layers is None else [config.drop_layers]
        return [{number: losses[number] for number in order[:dropped]} for dropped in counts]

    @property
    def _stacks(self) -> list[tuple[int, list[int]]]:
        return list(enumerate(self.candidates.stacks))

    def _out_of_reach(self, budget: Budget, least: float) -> str:
        """The message for a budget below what the smallest widths leave."""
        config, time = self._config, budget.unit == "seconds"
        left = self._left(budget)
        asked = f"speedup={1 / budget.value:.3g}" if time else f"{budget.unit}={budget.value:.3g}"
        possible = f"it is {1 / least:.3g} times as fast" if time else f"{least * left:.3g} is left"
        vocabulary, first = "", budget.unit == "params" and self._cut is None
        if budget.unit == "params":
            embedding = self.candidates.native.get_input_embeddings()
            part = count_parameters(embedding) / count_parameters(self.candidates.native)
            vocabulary = f", of which the embedding of the vocabulary is {part * left:.3g}"
        return (
            f"{asked} cannot be reached: with these parts at their smallest, {possible}{vocabulary}. Ask for "
            f"{'less' if time else 'more'}, or let more change (native={config.native}, only={list(config.only)}, "
            f"stacks={list(config.stacks)}, drop_layers={config.drop_layers})"
            + (", or leave out tokens first (--keep-tokens, collab.keep_tokens)." if first else ".")
        )
