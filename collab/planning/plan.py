"""Plans: what each of several budgets would give, before anything is made."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeVar

import torch

from ..decomposition import FORMS, FormName
from ..errors import BudgetError
from ..modeling.collab_native import LayerKind
from ..models.cache import CacheBytes
from ..reparametrization.layer import LayerProblem
from ..steps.step import DataSummary
from .allocation import Widths
from .budget import Budget, Part, Unit

logger = logging.getLogger(__name__)

Chosen = TypeVar("Chosen")


@dataclass(frozen=True)
class PlanOption:
    """The outcome of one budget.

    Attributes:
        budget: what was asked for, in the unit of the plan.
        reached: what is left of the original, in that unit; the largest error if that is the unit.
        form: form of the queries and keys that become narrower.
        rank: R, that of the layer with the largest.
        widths: by layer, R, values of a head and neurons of the parts that may be narrower; None for a layer that is
            dropped.
        error: predicted before any training. Of a conversion, the relative error of the scores (of the weights without
            calibration), root mean square of the layers. Of a compression, the disagreement of the outputs on held-out
            rows, the sum over all changes, each measured alone.
        layer_errors: the errors of a conversion layer by layer.
        query_key: query/key parameters relative to the original's.
        model: parameters of the whole model relative to the original's.
        flops: FLOPs of what may change relative to the original's, by sequence length. Of a conversion, these are
            query/key projections and scores.
        faster: how many times as fast these are, by sequence length: estimated for a conversion on a CPU; for a
            compression, of the whole model and only if the budget is of time.
        cache: what a cache would hold for each token; None for an encoder.
        frontier: whether no other option has at most as many parameters and a lower error.
        step: of a model that writes, the weights that a token being written reads, relative to the original's. Its
            inverse is the most that the form can make a step of writing faster, where that is bound by
            reading the weights.
    """

    budget: Any
    reached: float
    form: FormName
    rank: int
    widths: Widths
    error: float
    layer_errors: list[float]
    query_key: float
    model: float
    flops: dict[int, float]
    faster: dict[int, float]
    cache: CacheBytes | None = None
    frontier: bool = False
    step: float | None = None


@dataclass(frozen=True)
class Spectrum:
    """Energy in the leading principal components of a layer's matrices (Cordonnier et al. 2020, figure 1).

    Attributes:
        name: module name of the layer.
        kind: ``encoder``, ``decoder`` or ``cross``, as in `collab.inspect`.
        components: numbers of components.
        query: fraction of the energy of W_Q, heads side by side, in each number of components.
        key: the same of W_K.
        product: the same of W_Q W_Kᵀ.
    """

    name: str
    kind: LayerKind
    components: list[int]
    query: list[float]
    key: list[float]
    product: list[float]

    @classmethod
    def of(cls, name: str, kind: LayerKind, problem: LayerProblem) -> Spectrum:
        """The energy in a layer's concatenated query, key and product matrices.

        The components of W_Q W_Kᵀ are those of the scores summed over heads; the fewer it takes, the more the heads
        share.
        """
        query, key = problem.tensor.query, problem.tensor.key  # (D, K)
        left, right = (torch.linalg.qr(weight, mode="r").R for weight in (query, key))
        values = [
            torch.linalg.svdvals(left),
            torch.linalg.svdvals(right),
            torch.linalg.svdvals(left @ right.mT),
        ]
        count = min(map(len, values))
        components = sorted({max(1, round(count * step / 32)) for step in range(1, 33)})
        captured = []
        for singular_values in values:
            energy = singular_values.square().cumsum(0)
            share = energy / energy[-1] if energy[-1] > 0 else torch.ones_like(energy)
            captured.append([float(share[number - 1]) for number in components])
        return cls(name, kind, components, *captured)


@dataclass(frozen=True)
class Plan:
    """Result of `plan`.

    Attributes:
        unit: unit of the budgets: ``params``, ``flops``, ``step_bytes``, ``seconds``, ``rank`` or ``error``.
        layers: original widths of the parts that may be narrower, by module name of the layer.
        options: options by budget and form.
        calibration: summary of the calibration; None if errors are of the weights.
        query_key_parameters: query/key parameters of the original.
        model_parameters: parameters of the original.
        cache: what the original's cache holds for each token; None for an encoder.
        spectra: for a conversion, spectra of each layer, as in the paper's first figure.
        recommendation: for a conversion, the recommended option in words.
        refinement: in words, what refinement adds to it.
    """

    unit: Unit
    layers: dict[str, Mapping[Part, int]]
    options: list[PlanOption]
    calibration: DataSummary | None
    query_key_parameters: int
    model_parameters: int
    cache: CacheBytes | None = None
    spectra: list[Spectrum] = field(default_factory=list)
    recommendation: str = ""
    refinement: str = ""

    def to_dict(self) -> dict[str, Any]:
        """The plan as JSON values."""
        return asdict(self)


def within_each(budgets: Sequence[Budget], within: Callable[[Budget], Sequence[Chosen]]) -> list[tuple[Budget, Chosen]]:
    """The choices within several budgets; those that cannot be met are only logged.

    Raises:
        BudgetError: if none of them can be met; the message is that of the largest.
    """
    chosen: list[tuple[Budget, Chosen]] = []
    refused: dict[float, BudgetError] = {}
    for budget in budgets:
        try:
            chosen += [(budget, each) for each in within(budget)]
        except BudgetError as error:
            refused[budget.value] = error
    if not chosen:
        raise refused[max(refused)]
    for refusal in refused.values():
        logger.warning("%s", refusal)
    return chosen


def mark_frontier(options: Sequence[PlanOption]) -> list[PlanOption]:
    """The options, by form, with those marked that no other one is as small as and closer than."""

    def dominated(option: PlanOption) -> bool:
        return any(other.model <= option.model and other.error < option.error for other in options)

    marked = [replace(option, frontier=not dominated(option)) for option in options]
    return sorted(marked, key=lambda option: FORMS.index(option.form))


def recommend(options: Sequence[PlanOption], calibrated: bool, length: int) -> str:
    """The recommended option in words."""
    sizes = sorted({round(option.query_key, 2) for option in options})
    target = min(sizes, key=lambda part: abs(part - 1 / 3))
    near = [option for option in options if abs(option.query_key - target) < 0.05]
    best = min(near, key=lambda option: option.error)
    fastest = min(near, key=lambda option: option.flops[length])
    text = (
        f"With about {best.query_key:.0%} of the query/key parameters ({best.model:.1%} of the model), the {best.form} "
        f"form at rank {best.rank} is closest to the original: predicted error {best.error:.3f} of the "
        f"{'scores' if calibrated else 'weights'}."
    )
    if fastest is not best:
        text += (
            f" The {fastest.form} form at rank {fastest.rank} does the least arithmetic on {length} tokens "
            f"({fastest.flops[length]:.2f} of the original's, against {best.flops[length]:.2f}), at error "
            f"{fastest.error:.3f}."
        )
    return text
