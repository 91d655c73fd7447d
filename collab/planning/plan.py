"""What every form and rank would cost and how far off it would be, before anything is converted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from transformers import PreTrainedModel

from ..calibration.calibrate import Calibration
from ..decomposition import FORMS, Form, SolverOptions
from ..decomposition.options import Content
from ..errors import BudgetError
from ..io.options import Progress, no_progress
from ..models.families import require_family
from ..models.layers import count_parameters
from ..reparametrization.layer import LayerProblem
from ..reparametrization.model import LayerProblems
from .choice import nothing_fits
from .cost import LayerShape
from .predict import predict, together

FRACTIONS = (0.5, 1 / 3, 1 / 6)
LENGTHS = (32, 128, 512)


@dataclass(frozen=True)
class Option:
    """One way to convert a whole model, every layer with the same form and rank.

    Attributes:
        form: which.
        rank: R.
        error: predicted relative error of the scores (of the weights without calibration), root mean square of the
            layers.
        layer_errors: the same, layer by layer.
        query_key: query/key parameters that are left, of the original's.
        model: the whole model's parameters that are left, of the original's.
        flops: arithmetic of query/key projections and scores, of the original's, for a sequence of each length.
        cache_bytes: bytes of a key cache for each token, all layers together, in the model's dtype.
        frontier: whether no other option has both fewer parameters and a lower error.
    """

    form: Form
    rank: int
    error: float
    layer_errors: list[float]
    query_key: float
    model: float
    flops: dict[int, float]
    cache_bytes: int
    frontier: bool = False


@dataclass(frozen=True)
class Spectrum:
    """Energy in the leading principal components of a layer's matrices (Cordonnier et al. 2020, figure 1).

    Attributes:
        name: module name of the layer.
        components: numbers of components.
        query: energy captured of W_Q, heads side by side.
        key: of W_K.
        product: of W_Q W_Kᵀ.
    """

    name: str
    components: list[int]
    query: list[float]
    key: list[float]
    product: list[float]


@dataclass(frozen=True)
class Plan:
    """What `plan` found.

    Attributes:
        options: by form and falling size.
        spectra: for each layer, the paper's first figure.
        recommendation: in words.
        calibration: what the errors are predicted from; None for the weights alone.
        query_key_parameters: of the original.
        model_parameters: of the original.
        cache_bytes: of the original's key cache for each token.
    """

    options: list[Option]
    spectra: list[Spectrum]
    recommendation: str
    calibration: dict[str, Any] | None
    query_key_parameters: int
    model_parameters: int
    cache_bytes: int

    def to_dict(self) -> dict[str, Any]:
        """The plan as JSON values."""
        return asdict(self)


def plan(
    model: PreTrainedModel,
    calibration: Calibration | None = None,
    *,
    fractions: Sequence[float] = FRACTIONS,
    content: Content = "exact",
    lengths: Sequence[int] = LENGTHS,
    solver: SolverOptions | None = None,
    progress: Progress = no_progress,
) -> Plan:
    """Predicts errors and costs of every form at several sizes. Converts nothing.

    Args:
        model: a native model.
        calibration: what `collab.calibrate` returned for it; None to predict errors of the weights.
        fractions: of the query/key parameters to keep, each form at the rank that comes nearest from below.
        content: of the conversion.
        lengths: tokens of the sequences that arithmetic is counted for.
        solver: of the conversion.
        progress: called after every layer.

    Raises:
        UnsupportedArchitectureError, AlreadyConvertedError: if the model is not one that collab converts.
        CalibrationError: if the calibration is of another model.
        BudgetError: if no form fits into any of the fractions.
    """
    family = require_family(model.config)
    solver = solver or SolverOptions()
    moments = None if calibration is None else calibration.moments
    problems = LayerProblems(model, family, moments, solver.resolve_device(model.device))
    shapes = [LayerShape.of(problem) for problem in problems.values()]
    _check_fractions(fractions, content, shapes)
    ranks: dict[tuple[Form, float], list[int]] = {(form, part): [] for form in FORMS for part in fractions}
    errors: dict[tuple[Form, float], list[float]] = {key: [] for key in ranks}
    spectra: list[Spectrum] = []
    for shape, (name, problem) in zip(shapes, problems.items(), strict=True):
        spectra.append(spectrum(name, problem))
        for form, part in errors:
            rank = shape.rank_within(form, part * shape.parameters_before, content)
            ranks[form, part].append(rank)
            errors[form, part].append(predict(problem, form, rank, content, solver) if rank else 1.0)
        progress("predicting", len(spectra), len(problems))

    before = sum(shape.parameters_before for shape in shapes)
    whole = count_parameters(model)
    width = torch.finfo(model.dtype).bits // 8
    options = []
    for (form, part), of_layers in errors.items():
        of_form = ranks[form, part]
        if 0 in of_form:
            continue
        pairs = list(zip(shapes, of_form, strict=True))
        after = sum(shape.parameters(form, rank, content) for shape, rank in pairs)
        options.append(
            Option(
                form=form,
                rank=max(of_form),
                error=together(of_layers),
                layer_errors=of_layers,
                query_key=after / before,
                model=(whole - before + after) / whole,
                flops={
                    length: sum(shape.flops(form, rank, content, length) for shape, rank in pairs)
                    / sum(shape.flops_before(length) for shape in shapes)
                    for length in lengths
                },
                cache_bytes=width * sum(shape.cached_numbers(form, rank, content) for shape, rank in pairs),
            )
        )
    options = _mark_frontier(options)
    return Plan(
        options=options,
        spectra=spectra,
        recommendation=_recommend(options, calibration is not None, max(lengths)),
        calibration=None if calibration is None else calibration.summary,
        query_key_parameters=before,
        model_parameters=whole,
        cache_bytes=width * sum(shape.full_rank for shape in shapes),
    )


def _check_fractions(fractions: Sequence[float], content: Content, shapes: Sequence[LayerShape]) -> None:
    """Raises a BudgetError if no form fits into any fraction of the parameters in every layer."""
    largest = max(fractions)
    if not any(
        all(shape.rank_within(form, largest * shape.parameters_before, content) for shape in shapes) for form in FORMS
    ):
        raise BudgetError(nothing_fits(largest, FORMS, content, shapes))


def spectrum(name: str, problem: LayerProblem) -> Spectrum:
    """Energy captured by principal components of a layer's concatenated query, key and product matrices.

    The components of W_Q W_Kᵀ are those of the scores summed over heads; the fewer it takes, the more the heads share.
    """
    query, key = problem.tensor.query, problem.tensor.key  # (D, K)
    left, right = (torch.linalg.qr(one, mode="r").R for one in (query, key))
    values = [
        torch.linalg.svdvals(left),
        torch.linalg.svdvals(right),
        torch.linalg.svdvals(left @ right.mT),
    ]
    count = min(len(one) for one in values)
    components = sorted({max(1, round(count * step / 32)) for step in range(1, 33)})
    captured = []
    for one in values:
        energy = one.square().cumsum(0)
        share = energy / energy[-1] if energy[-1] > 0 else torch.ones_like(energy)
        captured.append([float(share[number - 1]) for number in components])
    return Spectrum(name, components, *captured)


def _mark_frontier(options: list[Option]) -> list[Option]:
    def beaten(one: Option) -> bool:
        return any(
            other.query_key <= one.query_key and other.error < one.error and other is not one for other in options
        )

    return [replace(one, frontier=not beaten(one)) for one in options]


def _recommend(options: list[Option], calibrated: bool, length: int) -> str:
    """What to choose, in words."""
    middle = sorted({round(one.query_key, 2) for one in options})
    target = min(middle, key=lambda part: abs(part - 1 / 3))
    near = [one for one in options if abs(one.query_key - target) < 0.05]
    best = min(near, key=lambda one: one.error)
    fastest = min(near, key=lambda one: one.flops[length])
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
