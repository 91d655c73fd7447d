"""Predicted errors and costs of every form at several sizes, before converting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from transformers import PreTrainedModel

from ..calibration.calibrate import Calibration
from ..decomposition import FORMS, FormName, SolverOptions
from ..decomposition.options import Content
from ..errors import BudgetError
from ..evaluation.options import REPORTED_LENGTHS
from ..modeling.collab_attention import LayerKind
from ..models.cache import CacheBytes, cache_bytes
from ..models.families import require_family
from ..models.inputs import lengths_within
from ..models.layers import count_parameters, native_layers
from ..progress import Progress, no_progress
from ..reparametrization.layer import LayerProblem
from ..reparametrization.model import LayerProblems
from .choice import nothing_fits
from .cost import LayerShape
from .predict import predict, together

FRACTIONS = (0.5, 1 / 3, 1 / 6)


@dataclass(frozen=True)
class PlanOption:
    """One way to convert a whole model, every layer with the same form and rank.

    Attributes:
        form: decomposition form.
        rank: R, that of the layer with the largest.
        error: predicted relative error of the scores (of the weights without calibration), root mean square of the
            layers.
        layer_errors: the same, layer by layer.
        query_key: query/key parameters relative to the original's.
        model: parameters of the whole model relative to the original's.
        flops: FLOPs of query/key projections and scores relative to the original's, by sequence length.
        cache: what a cache would hold for each token; None for an encoder.
        frontier: whether no other option has at most as many parameters and a lower error.
    """

    form: FormName
    rank: int
    error: float
    layer_errors: list[float]
    query_key: float
    model: float
    flops: dict[int, float]
    cache: CacheBytes | None
    frontier: bool = False


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


@dataclass(frozen=True)
class Plan:
    """Result of `plan`.

    Attributes:
        options: options by form and falling size.
        spectra: spectra of each layer, as in the paper's first figure.
        recommendation: the recommended option in words.
        refinement: in words, what refinement adds to it.
        calibration: summary of the calibration; None if errors are of the weights.
        query_key_parameters: query/key parameters of the original.
        model_parameters: parameters of the original.
        cache: what the original's cache holds for each token; None for an encoder.
    """

    options: list[PlanOption]
    spectra: list[Spectrum]
    recommendation: str
    refinement: str
    calibration: dict[str, Any] | None
    query_key_parameters: int
    model_parameters: int
    cache: CacheBytes | None

    def to_dict(self) -> dict[str, Any]:
        """The plan as JSON values."""
        return asdict(self)


def plan(
    model: PreTrainedModel,
    calibration: Calibration | None = None,
    *,
    fractions: Sequence[float] = FRACTIONS,
    content: Content = "exact",
    lengths: Sequence[int] | None = None,
    solver: SolverOptions | None = None,
    progress: Progress = no_progress,
) -> Plan:
    """Predicts errors and costs of every form at several sizes, without converting the model.

    Args:
        model: a native model.
        calibration: result of `collab.calibrate` for it; None to predict errors of the weights.
        fractions: fractions of the query/key parameters to keep; each form gets the largest rank within each.
        content: ``exact`` or ``folded``, as in `ConversionConfig`.
        lengths: sequence lengths, in tokens, to count FLOPs for; None for 32, 128 and 512, or what the model accepts
            where that is less.
        solver: solver settings.
        progress: progress callback, called after every layer.

    Returns:
        The options, the layers' spectra and a recommendation.

    Raises:
        UnsupportedArchitectureError: if collab does not convert the model.
        AlreadyConvertedError: if it is collaborative already.
        CalibrationError: if the calibration is of another model.
        BudgetError: if no form fits into any of the fractions.
    """
    require_family(model.config)
    solver = solver or SolverOptions()
    lengths = lengths_within(model, REPORTED_LENGTHS) if lengths is None else lengths
    moments = None if calibration is None else calibration.moments
    problems = LayerProblems(model, moments, solver.resolve_device(model.device))
    shapes = [LayerShape.of(problem) for problem in problems.values()]
    _check_fractions(fractions, content, shapes)
    kinds = {name: layer.kind for name, layer in native_layers(model).items()}
    ranks: dict[tuple[FormName, float], list[int]] = {(form, part): [] for form in FORMS for part in fractions}
    errors: dict[tuple[FormName, float], list[float]] = {key: [] for key in ranks}
    spectra: list[Spectrum] = []
    progress("predicting", 0, len(problems))
    for shape, (name, problem) in zip(shapes, problems.items(), strict=True):
        spectra.append(spectrum(name, kinds[name], problem))
        for form, part in errors:
            rank = shape.rank_within(form, part * shape.parameters_before, content)
            ranks[form, part].append(rank)
            errors[form, part].append(predict(problem, form, rank, content, solver) if rank else 1.0)
        progress("predicting", len(spectra), len(problems))

    original = _Original(shapes, list(kinds.values()), count_parameters(model), cache_bytes(model))
    fitting = [key for key in errors if all(ranks[key])]
    options = _mark_frontier([original.option(key[0], ranks[key], errors[key], content, lengths) for key in fitting])
    return Plan(
        options=options,
        spectra=spectra,
        recommendation=_recommend(options, calibration is not None, max(lengths)),
        refinement=_refinement(calibration),
        calibration=None if calibration is None else calibration.summary,
        query_key_parameters=original.query_key,
        model_parameters=original.parameters,
        cache=original.cache,
    )


@dataclass(frozen=True)
class _Original:
    """What an option is compared with: the model before conversion.

    Attributes:
        shapes: shapes of its attention layers.
        kinds: kind of each of them: the keys of an encoder are in no cache.
        parameters: parameters of the whole model.
        cache: what its cache holds for each token, measured; None for an encoder.
    """

    shapes: list[LayerShape]
    kinds: list[LayerKind]
    parameters: int
    cache: CacheBytes | None

    @property
    def query_key(self) -> int:
        """Query/key parameters."""
        return sum(shape.parameters_before for shape in self.shapes)

    def option(
        self, form: FormName, ranks: list[int], errors: list[float], content: Content, lengths: Sequence[int]
    ) -> PlanOption:
        """The costs of converting each layer at its rank, beside its predicted errors."""
        pairs = list(zip(self.shapes, ranks, strict=True))
        after = sum(shape.parameters(form, rank, content) for shape, rank in pairs)
        return PlanOption(
            form=form,
            rank=max(ranks),
            error=together(errors),
            layer_errors=errors,
            query_key=after / self.query_key,
            model=(self.parameters - self.query_key + after) / self.parameters,
            flops={
                length: sum(shape.flops(form, rank, content, length) for shape, rank in pairs)
                / sum(shape.flops_before(length) for shape in self.shapes)
                for length in lengths
            },
            cache=self._cache(ranks, content),
        )

    def _cache(self, ranks: list[int], content: Content) -> CacheBytes | None:
        """The cache of a conversion, whose values are the original's."""
        if self.cache is None:
            return None
        after = dict.fromkeys(("decoder", "cross"), 0)
        before = dict(after)
        for shape, kind, rank in zip(self.shapes, self.kinds, ranks, strict=True):
            if kind != "encoder":
                after[kind] += shape.cached_numbers(rank, content)
                before[kind] += shape.full_rank
        return replace(
            self.cache,
            keys=self.cache.keys * after["decoder"] // max(1, before["decoder"]),
            cross_keys=self.cache.cross_keys * after["cross"] // max(1, before["cross"]),
        )


def _check_fractions(fractions: Sequence[float], content: Content, shapes: Sequence[LayerShape]) -> None:
    """Raises a BudgetError if no form fits into any fraction of the parameters in every layer."""
    largest = max(fractions)
    if not any(
        all(shape.rank_within(form, largest * shape.parameters_before, content) for shape in shapes) for form in FORMS
    ):
        raise BudgetError(nothing_fits(largest, FORMS, content, shapes))


def spectrum(name: str, kind: LayerKind, problem: LayerProblem) -> Spectrum:
    """Energy in the leading principal components of a layer's concatenated query, key and product matrices.

    The components of W_Q W_Kᵀ are those of the scores summed over heads; the fewer it takes, the more the heads share.
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
    return Spectrum(name, kind, components, *captured)


def _mark_frontier(options: list[PlanOption]) -> list[PlanOption]:
    def dominated(option: PlanOption) -> bool:
        return any(other.query_key <= option.query_key and other.error < option.error for other in options)

    return [replace(option, frontier=not dominated(option)) for option in options]


def _recommend(options: list[PlanOption], calibrated: bool, length: int) -> str:
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


def _refinement(calibration: Calibration | None) -> str:
    """What a conversion does after solving the layers, in words."""
    if calibration is None or not calibration.can_refine:
        return "Nothing is refined: that needs rows to calibrate on."
    return (
        "Predicted errors are those before refinement, by which a conversion then brings the output of each attention "
        "layer closer to the original's, at the same size, on the rows of the calibration."
    )
