"""Converts a native model to a collaborative one."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.pytorch_utils import Conv1D

from ..calibration.calibrate import Calibration
from ..calibration.collect import owners_of_layers
from ..decomposition import Factors, FormName
from ..decomposition.options import NATIVE_FORM
from ..decomposition.rank import resolve_ranks
from ..errors import UnsupportedArchitectureError, WeightsError
from ..evaluation.compare import agreement_by_source
from ..io.checkpoint import Checkpoint
from ..io.failures import writing
from ..modeling.collab_config import AttentionSpec
from ..modeling.collab_step import PLAIN, PLAIN_CONV1D
from ..models.assembly import assemble, described_shapes
from ..models.families import Family, require_family
from ..models.layers import AttentionLayer, count_bytes, native_layers, parameters
from ..models.weights import check_finite
from ..planning.choice import Choice, choose, compare_forms
from ..planning.config import ConversionConfig
from ..processes import divided, from_main
from ..progress import LARGE, Progress, no_progress, with_bytes
from ..reparametrization.layer import LayerProblem, fitting, spec_of, state_of
from ..reparametrization.model import LayerProblems
from ..reparametrization.moments import LayerMoments
from ..steps.conversion import Conversion, LayerConversion
from ..steps.step import Count, Json, Parameters
from ..training.refine import refine
from .refined import refine_options, refined_reports, within

logger = logging.getLogger(__name__)


def convert(
    checkpoint: Checkpoint | PreTrainedModel,
    config: ConversionConfig,
    *,
    calibration: Calibration | None = None,
    inplace: bool = False,
    share: bool = False,
    scratch: Path | None = None,
    progress: Progress = no_progress,
) -> Checkpoint:
    """Converts a model to collaborative attention.

    Parameters that stay keep their `requires_grad`; the new ones are trainable. Several processes, which all call this,
    divide the layers and the rows of refinement, and all get the same model.

    Args:
        checkpoint: a native transformers model of a supported family, with any of its heads.
        config: settings of the conversion.
        calibration: result of `collab.calibrate` for this model, to approximate the scores on such inputs instead of
            the weights, which is far more faithful at the same size. None to approximate the weights.
        inplace: whether to turn the model itself into the collaborative model, sharing the weights that stay. Nothing
            changes unless every layer was solved. Hooks on replaced submodules are lost.
        share: whether the converted model uses the original's tensors for the weights that stay, instead of copies.
        scratch: a folder to keep the new weights in, each layer in a file that is mapped into memory, so that no more
            than one layer is held besides what is mapped; the model can be used as long as the folder is there. Only
            without calibration. None to keep them in memory.
        progress: progress callback, called after every solved layer and every step of refinement.

    Returns:
        The converted model, with a `Conversion` as its report.

    Raises:
        ConfigurationError: if a number of refinement steps is given without rows to refine on.
        UnsupportedArchitectureError: if collab does not convert the model.
        AlreadyConvertedError: if it is collaborative already.
        CalibrationError: if the calibration is of another model.
        BudgetError: if no rank meets the budget.
        RankError: if a rank is out of range or missing.
        WeightsError: if a weight cannot be converted or does not fit its dtype, or the model differs from its config.
        DeviceError: if the device to solve on is not available.
    """
    start_time = time.perf_counter()
    checkpoint = Checkpoint.of(checkpoint)
    model = checkpoint.model
    family, model_class = require_convertible(model)
    refining = None if is_lossless(model, config) else refine_options(config, calibration)
    moments, held_out = (None, None) if calibration is None else (calibration.moments, calibration.held_out_moments)
    problems = LayerProblems(model, moments, config.solver_options.resolve_device(model.device))
    choice = from_main(lambda: choose(model, config, calibration))
    layers, reports, comparison = _solve_all(model, problems, choice, config, calibration, scratch, progress)
    converted = _build(model, model_class, family, layers, share=inplace or share)
    if refining is not None and calibration is not None:
        accept = within(config.max_error, problems)
        rows = calibration.train, calibration.held_out
        refinement = refine(converted, model, *rows, options=refining, accept=accept, progress=progress).report
        reports = from_main(lambda: refined_reports(reports, refinement, converted, problems, held_out))
    agreed, by_source = _agreement(model, converted, calibration, progress)
    report = Conversion(
        layers=tuple(reports),
        parameters=Parameters.of(parameters(model), parameters(converted)),
        settings=config.to_dict(),
        choice=choice.explanation,
        calibration=None if calibration is None else calibration.summary,
        agreement=agreed,
        agreement_by_source=by_source,
        comparison=comparison,
        seconds=time.perf_counter() - start_time,
        notes=() if calibration is None else calibration.notes,
    )
    if inplace:
        return checkpoint.then(report, model=_become(model, converted))
    return checkpoint.then(report, model=converted, original=checkpoint)


@dataclass(frozen=True)
class _Solved:
    """A solved layer: the spec of the new one and its query and key parameters, by name, which a file may hold."""

    spec: AttentionSpec
    state: dict[str, Tensor]
    file: Path | None = None

    def to_send(self) -> _Solved:
        """The same for a process that may have another GPU."""
        return _Solved(self.spec, {name: tensor.cpu() for name, tensor in self.state.items()}, self.file)

    def kept_in(self, file: Path) -> _Solved:
        """The same with its parameters in a file."""
        with writing(str(file.parent), "Nothing was written."):
            save_file(self.state, file)
        return _Solved(self.spec, {}, file)

    def read(self) -> _Solved:
        """The same with what is in the file, which is mapped into memory."""
        return self if self.file is None else _Solved(self.spec, load_file(self.file), self.file)


def convert_losslessly(checkpoint: Checkpoint | PreTrainedModel) -> Checkpoint:
    """The original's own attention as collaborative layers, which other steps can make smaller; errors as `convert`."""
    model = Checkpoint.of(checkpoint).model
    require_family(model.config)
    rotary = any(layer.rotary for layer in native_layers(model).values())
    config = ConversionConfig(rank=1.0, form=NATIVE_FORM, content="exact" if rotary else "folded", compare=False)
    return convert(checkpoint, config)


def _agreement(
    model: PreTrainedModel, converted: PreTrainedModel, calibration: Calibration | None, progress: Progress
) -> tuple[dict[str, float] | None, dict[str, dict[str, float]]]:
    """Agreement with the original on the held-out batches, and by source; None without calibration."""
    if calibration is None:
        return None, {}
    if calibration.held_out:
        progress("comparing with the original", 0, None)
    return agreement_by_source(model, converted, calibration.held_out, calibration.sources)


def _become(model: PreTrainedModel, other: PreTrainedModel) -> PreTrainedModel:
    """Turns one model object into another, with its class, config and modules."""
    model.__class__, model.__dict__ = other.__class__, other.__dict__
    return model


def _solve_all(
    model: PreTrainedModel,
    problems: LayerProblems,
    choice: Choice,
    config: ConversionConfig,
    calibration: Calibration | None,
    scratch: Path | None,
    progress: Progress,
) -> tuple[dict[str, _Solved], list[LayerConversion], list[Json]]:
    """Solves all layers: the new ones by module name, reports, and the comparison of forms.

    Each process solves those that it owns.
    """
    held_out = None if calibration is None else calibration.held_out_moments
    layers = native_layers(model)
    large = count_bytes(model.parameters()) > LARGE

    def solve(own: list[tuple[str, int]]) -> list[tuple[_Solved, LayerConversion, Json]]:
        sizes = [count_bytes(layers[name].module.parameters()) for name, _ in own]
        solved: list[tuple[_Solved, LayerConversion, Json]] = []

        def say() -> None:
            what = with_bytes("solving", sum(sizes), sum(sizes[: len(solved)])) if large else "solving"
            progress(what, len(solved), len(own))

        say()
        for name, width in own:
            logger.debug("%s: solving", name)
            problem = problems[name]  # created once: solving and comparing share its eigenvectors
            moments = None if held_out is None else held_out[name]
            factors, report = _solve(layers[name], problem, choice.form, width, config, moments)
            layer = _Solved(spec_of(factors), state_of(factors))
            if scratch is not None and calibration is None:
                layer = layer.kept_in(scratch / f"{list(problems).index(name)}.safetensors")
            compared = {"name": name} | compare_forms(problem, report, config) if config.compare else {}
            solved.append((layer.to_send(), report, compared))
            del problem, factors, layer  # frees float64 copies before the next are made
            logger.info("%s: %s, rank %d, relative error %.4f", name, choice.form, report.rank, report.error)
            say()
        return solved

    owner = owners_of_layers(model)
    ranks = list(zip(problems, choice.ranks, strict=True))
    solved = divided(ranks, solve, owner=[owner[name] for name in problems])
    reports = [report for _, report, _ in solved]
    comparison = [compared for _, _, compared in solved if config.compare]
    return {name: layer.read() for name, (layer, _, _) in zip(problems, solved, strict=True)}, reports, comparison


def require_convertible(model: PreTrainedModel) -> tuple[Family, type[PreTrainedModel]]:
    """The family of a model to convert, and its collaborative class.

    Raises:
        UnsupportedArchitectureError: as `convert`.
        AlreadyConvertedError: as `convert`.
        WeightsError: as `convert`.
    """
    if not isinstance(model, PreTrainedModel):
        raise UnsupportedArchitectureError(
            f"model must be a transformers model, as from AutoModel.from_pretrained(...), not {type(model).__name__}."
        )
    family = require_family(model.config)
    model_class = family.collaborative_class(type(model))
    if model_class is None:
        names = ", ".join(candidate.native_class().__name__ for candidate in family.models)
        raise UnsupportedArchitectureError(
            f"{type(model).__name__} cannot be converted. For {family.native_model_type} models, load one of: {names}."
        )
    if not native_layers(model):
        raise UnsupportedArchitectureError("The model has no attention layers, so there is nothing to convert.")
    check_weights(model)
    check_structure(model)
    return family, model_class


def is_lossless(model: PreTrainedModel, config: ConversionConfig) -> bool:
    """Whether R = K in every layer, so that there is nothing to approximate.

    Raises:
        RankError: if a rank is out of range or there is not one for each layer.
    """
    if config.rank is None:
        return False
    require_family(model.config)
    full = [layer.full_rank for layer in native_layers(model).values()]
    return resolve_ranks(config.rank, full) == full


def check_weights(model: PreTrainedModel) -> None:
    """Checks that a model's weights can be converted.

    Raises:
        WeightsError: if a weight is NaN, infinite or not in memory, or a projection is not a plain linear layer; the
            message names it.
    """
    for name, layer in native_layers(model).items():
        for native_name in map(layer.name_of, ("query", "key", "value")):
            check_plain(f"{name}.{native_name}", getattr(layer.module, native_name))
    check_finite(model)


def check_plain(name: str, projection: nn.Module) -> None:
    """Raises a WeightsError for a projection that is not a plain linear layer."""
    if type(projection) not in (*PLAIN, *PLAIN_CONV1D) or type(projection.weight) is not nn.Parameter:
        raise WeightsError(
            f"{name} is a {type(projection).__name__}, not a plain linear layer. Load the model without quantization, "
            "and merge adapters (merge_and_unload) before converting."
        )


def check_structure(model: PreTrainedModel) -> None:
    """Checks that a model is the one that its config describes, because the converted model is built from the config.

    Raises:
        WeightsError: if a tensor is missing, unexpected or of another shape; the message names it.
    """
    described = described_shapes(model, model.config)
    actual = {name: tensor.shape for name, tensor in model.state_dict().items()}
    for name in [*described, *actual]:
        if described.get(name) != actual.get(name):
            raise WeightsError(
                f"The model differs from its config: {name} should be {_shape(described.get(name))} and is "
                f"{_shape(actual.get(name))}. Change model.config accordingly (number of labels, layers, vocabulary), "
                "or convert first and change the converted model."
            )


def _shape(shape: torch.Size | None) -> str:
    return "absent" if shape is None else f"of shape {tuple(shape)}"


def _build(
    native: PreTrainedModel,
    model_class: type[PreTrainedModel],
    family: Family,
    solved: Mapping[str, _Solved],
    share: bool,
) -> PreTrainedModel:
    """Builds the collaborative model with the solved and the remaining weights."""
    config = _collaborative_config(native.config, family, [layer.spec for layer in solved.values()])
    layers = native_layers(native)
    state: dict[str, Tensor] = {}
    trainable: dict[str, bool] = {}
    for name, tensor in native.state_dict(keep_vars=True).items():
        owner = owner_of(name, layers)
        parts = {name: tensor} if owner is None else _parts(name, tensor, layers[owner])
        for part, values in parts.items():
            state[part] = values.detach() if share and len(parts) == 1 else values.detach().clone()
            trainable[part] = tensor.requires_grad
    for name, layer in solved.items():
        state |= {f"{name}.{parameter}": tensor for parameter, tensor in layer.state.items()}
    return assemble(model_class, config, state, native, trainable, share=share)


def install(model: PreTrainedModel, name: str, factors: Factors) -> None:
    """Replaces one attention layer of a native model by a collaborative one with the given factors."""
    native = native_layers(model)[name]
    query = native.projection("query")
    factors = fitting(factors, query.weight, name)
    layer = native.collaborative(native.module, spec_of(factors), model.config)
    layer.load_state_dict(state_of(factors), strict=False, assign=True)
    model.set_submodule(name, layer.to(query.weight).train(native.module.training))


def _collaborative_config(native: PretrainedConfig, family: Family, specs: list[AttentionSpec]) -> PretrainedConfig:
    values = native.to_dict()
    for name in ("model_type", "auto_map", "architectures"):
        values.pop(name, None)
    values["collab_layers"] = [spec.to_dict() for spec in specs]
    config = family.config_class(**values)
    if native._attn_implementation in ("eager", "sdpa", "flex_attention"):
        config._attn_implementation = native._attn_implementation
    config._output_attentions = native.output_attentions
    config.name_or_path = native.name_or_path
    return config


def owner_of(name: str, layers: Iterable[str]) -> str | None:
    """Name of the attention layer that a parameter belongs to; None if it belongs to none."""
    return next((layer for layer in layers if name.startswith(f"{layer}.")), None)


def _parts(name: str, tensor: Tensor, layer: AttentionLayer) -> dict[str, Tensor]:
    """The parts of a native layer's parameter in the collaborative one, by name; none for queries and keys."""
    module, *parameter = name.removeprefix(f"{layer.name}.").split(".")
    roles = layer.roles_of(module)
    if tensor.ndim == 2 and isinstance(layer.module.get_submodule(module), Conv1D):
        tensor = tensor.T.contiguous()  # stored transposed
    return {
        ".".join([layer.name, role, *parameter]): part
        for role, part in zip(roles, tensor.chunk(len(roles)), strict=True)
        if role not in ("query", "key")
    }


def _solve(
    native: AttentionLayer,
    problem: LayerProblem,
    form: FormName,
    rank: int,
    config: ConversionConfig,
    held_out: LayerMoments | None,
) -> tuple[Factors, LayerConversion]:
    """Solves one layer; the native one gives the dtype and the parameters before."""
    start = time.perf_counter()
    with torch.no_grad():
        solution = problem.solve(form, rank, config.content, config.solver_options, config.seed)
    factors = fitting(solution.factors, native.projection("query").weight, native.name)
    report = LayerConversion(
        name=native.name,
        form=factors.form,
        rank=factors.rank,
        full_rank=factors.num_heads * solution.head_dim,
        error=solution.error,
        score_error=solution.score_error,
        held_out_error=None if held_out is None else problem.score_error(factors, held_out),
        sweeps=solution.sweeps,
        converged=solution.converged,
        degeneracy=solution.degeneracy,
        seconds=time.perf_counter() - start,
        query_key=Count(native.query_key_parameters, factors.num_parameters),
    )
    return factors, report
