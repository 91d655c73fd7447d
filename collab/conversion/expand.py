"""Converts a collaborative model back to a native one."""

from __future__ import annotations

import logging
import math
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from transformers import PretrainedConfig, PreTrainedModel
from transformers.pytorch_utils import Conv1D

from ..decomposition import RotaryFactors
from ..errors import BudgetError, ConfigurationError, NotConvertedError, WeightsError
from ..io.checkpoint import Checkpoint
from ..modeling.collab_attention import CollaborativeAttention
from ..modeling.collab_config import CollaborativeConfig
from ..modeling.collab_model import optional_parts, outermost
from ..modeling.collab_native import as_linear
from ..modeling.collab_rotary import CollaborativeRotaryAttention
from ..models.assembly import fill, renumber_alignment, unfilled
from ..models.families import Family, collaborative_layers, families, native_type
from ..models.inputs import probe_inputs
from ..models.layers import count_parameters, native_layers, output_width, part_of
from ..models.states import evaluating
from ..models.weights import check_finite
from ..reparametrization.layer import factors_of
from ..steps.export import ExpandedLayer, Expansion
from ..steps.step import Count
from .convert import check_plain, owner_of
from .native_layer import NativeLayer, native_layer, native_rotary_layer, rounding, without_heads

logger = logging.getLogger(__name__)

_ATTENTION_BIASES = "qkv_bias"
"""The config entry for biases of queries, keys and values, in families where they are optional."""


def expand(checkpoint: Checkpoint | PreTrainedModel, *, allow_error: float = 0.0) -> Checkpoint:
    """Converts a collaborative model back to the native class that it came from.

    All weights outside the query and key projections are copied unchanged. Narrower values are padded with zeros to the
    width of the original's heads, and feed-forward layers to that of the widest. Dropped layers stay dropped. The
    converted model is not changed.

    Args:
        checkpoint: a converted model, of a class that collab defines (import collab before loading it).
        allow_error: largest relative error of a layer's query-key products, in case a native layer cannot represent
            the collaborative one. With 0 the expansion must be exact to rounding.

    Returns:
        The native model, with an `Expansion` as its report.

    Raises:
        NotConvertedError: if the model is not collaborative.
        ConfigurationError: if `allow_error` is not between 0 and 1.
        BudgetError: if a layer's error is larger; the message names it.
        WeightsError: if a weight is NaN, infinite, quantized or not in memory.
    """
    if not (math.isfinite(allow_error) and 0 <= allow_error <= 1):
        raise ConfigurationError(f"allow_error must be a relative error from 0 to 1, not {allow_error}.")
    checkpoint = Checkpoint.of(checkpoint)
    model = checkpoint.model
    family, native_class = require_expandable(model)
    layers = collaborative_layers(model)
    natives, reports = {}, []
    for name, layer in layers.items():
        with torch.no_grad():
            natives[name] = native = _native_layer(model, name, layer)
        spec = layer.spec
        reports.append(ExpandedLayer(name, spec.form, spec.rank, max(native.head_ranks), native.most, native.error))
        logger.info("%s: relative error %.2e", name, native.error)
    rotary = any(isinstance(layer, CollaborativeRotaryAttention) for layer in layers.values())
    if any(layer.spec.long is not None for layer in layers.values()):
        logger.warning("The native model computes long rows like short ones, so its outputs differ there.")
    expanded = _unfilled(model, native_class, family, natives)  # first, as no error allows biases that it lacks
    _check_error(reports, max(allow_error, rounding(model.dtype)), rotary)
    _fill(expanded, model, family, layers, natives)
    renumber_alignment(expanded, [dict(enumerate(layer.heads)) for layer in layers.values() if layer.kind == "cross"])
    difference, scale = _output_difference(model, expanded)
    parameters = Count(count_parameters(model), count_parameters(expanded))
    report = Expansion(native_class.__name__, tuple(reports), parameters, difference, scale, checkpoint.name)
    return checkpoint.then(report, model=expanded, original=checkpoint)


def require_expandable(model: PreTrainedModel) -> tuple[Family, type[PreTrainedModel]]:
    """The family of a collaborative model, and the native class that it came from.

    Raises:
        NotConvertedError: as `expand`.
        WeightsError: as `expand`.
    """
    family = families().get(native_type(model.config.model_type))
    if family is None or type(model) not in family.models:
        raise NotConvertedError(
            f"{type(model).__name__} is not a converted model, so there is nothing to expand. If it should be, import "
            "collab before loading it."
        )
    for name, layer in collaborative_layers(model).items():
        for projection in ("query", "key") if layer.heads else ():
            check_plain(f"{name}.{projection}", getattr(layer, projection))
    check_finite(model)
    return family, type(model).native_class()  # type: ignore[attr-defined]


def _native_layer(model: PreTrainedModel, name: str, layer: CollaborativeAttention) -> NativeLayer:
    """The nearest native layer of one attention layer."""
    width = layer.attention_head_size
    if not layer.heads:
        most = 1 if isinstance(layer, CollaborativeRotaryAttention) else width
        return without_heads(output_width(model.get_submodule(layer.output_name(name))), most)
    factors = factors_of(layer)
    if not isinstance(factors, RotaryFactors):
        return native_layer(factors, width)
    # Heads that share a key share its values.
    assert isinstance(layer.value, nn.Linear)
    shared = layer.value.out_features // layer.value_width
    return native_rotary_layer(factors, width, shared)


def _check_error(layers: list[ExpandedLayer], allowed: float, rotary: bool) -> None:
    """Raises a BudgetError if a layer's error is above `allowed`."""
    worst = max(layers, key=lambda layer: layer.error)
    if worst.error <= allowed:
        return
    raise BudgetError(
        f"{worst.name} cannot be written as a native layer without a relative error of {worst.error:.3g}: its heads "
        f"({worst.form}, rank {worst.rank}) compare up to {worst.head_rank} dimensions"
        f"{' of one frequency' if rotary else ''}, and a native head has {worst.head_dim}. Accept that error with "
        f"allow_error={_rounded_up(worst.error):g} (--allow-error), or convert in the concat form"
        f"{'' if rotary else ' with folded content'}, which always expands."
    )


def _rounded_up(error: float) -> float:
    """An error rounded up to two digits."""
    digits = 1 - math.floor(math.log10(error))
    return math.ceil(error * 10**digits) / 10**digits


def _unfilled(
    model: PreTrainedModel, native_class: type[PreTrainedModel], family: Family, natives: dict[str, NativeLayer]
) -> PreTrainedModel:
    """The native model without weights.

    Raises:
        WeightsError: if it has no biases where they are needed.
    """
    config = _native_config(model, family, native_class)
    with unfilled(model.dtype):
        expanded = native_class(config, **optional_parts(model))
        if _lacks_bias(expanded, natives):
            if not hasattr(config, _ATTENTION_BIASES):
                raise WeightsError(
                    f"{native_class.__name__} lacks biases of queries or keys, and this model needs them. "
                    "Convert in the concat form with folded content."
                )
            setattr(config, _ATTENTION_BIASES, True)
            expanded = native_class(config, **optional_parts(model))
    return expanded


def _fill(
    expanded: PreTrainedModel,
    model: PreTrainedModel,
    family: Family,
    layers: dict[str, CollaborativeAttention],
    natives: dict[str, NativeLayer],
) -> None:
    """Gives the native model the native projections and the unchanged weights."""
    state: dict[str, Tensor] = {}
    trainable: dict[str, bool] = {}
    parts: dict[str, dict[str, Tensor]] = {name: {} for name in layers}  # of each layer, by their names in it
    for name, tensor in model.state_dict(keep_vars=True).items():
        owner = owner_of(name, layers)
        if owner is None:
            state[name] = tensor.detach().clone()
            trainable[name] = tensor.requires_grad
        else:
            parts[owner][name.removeprefix(f"{owner}.")] = tensor
    for name, native in native_layers(expanded).items():
        layer = layers[name]
        whole = _native_parts(layer, natives[name], parts[name])
        for native_name, like in native.module.state_dict().items():
            module, *rest = native_name.split(".")
            roles = native.roles_of(module)
            transposed = like.ndim == 2 and isinstance(native.module.get_submodule(module), Conv1D)
            like = like.T if transposed else like
            found = [whole.get(".".join([role, *rest])) for role in roles]
            # Absent are biases that the model lacks, and the values of a layer without heads.
            rows = [torch.zeros_like(like.chunk(len(roles))[0]) if row is None else row for row in found]
            joined = torch.cat(rows).to(next(model.parameters()))
            state[f"{name}.{native_name}"] = joined.T.contiguous() if transposed else joined
            given = [parts[name][part] for part in (".".join([role, *rest]) for role in roles) if part in parts[name]]
            trainable[f"{name}.{native_name}"] = all(tensor.requires_grad for tensor in given)
        output = f"{native.output_name}.weight"
        if "dense" not in layer.native_names:
            like = expanded.get_parameter(output)
            state[output] = (
                _whole(state[output], layer, layer.value_width, 1) if output in state else torch.zeros_like(like)
            )
    _pad_feed_forward(state, expanded, family)
    fill(expanded, {name: tensor.detach() for name, tensor in state.items()}, model, trainable)


def _native_parts(layer: CollaborativeAttention, native: NativeLayer, parts: dict[str, Tensor]) -> dict[str, Tensor]:
    """The parameters of the native layer, by the names that they have in the collaborative one."""
    kept = {name: tensor for name, tensor in parts.items() if name.partition(".")[0] in layer.native_names}
    for name, dim in (("value.weight", 0), ("value.bias", 0), ("dense.weight", 1)):
        if name in kept:
            kept[name] = _whole(kept[name], layer, layer.value_width, dim)
    width = layer.attention_head_size
    return kept | {
        "query.weight": _whole(native.query, layer, width),
        "query.bias": _whole(native.query_bias, layer, width),
        "key.weight": _whole(native.key, layer, width),
        "key.bias": _whole(native.key_bias, layer, width),
    }


def _whole(tensor: Tensor, layer: CollaborativeAttention, width: int, dim: int = 0) -> Tensor:
    """Pads the rows (or columns) of a layer's heads, `width` of each, to K with zeros, those of pruned heads too."""
    full, shape = layer.attention_head_size, list(tensor.shape)
    if layer.spec.heads is None and width == full:
        return tensor
    shared = shape[dim] < len(layer.heads) * width  # values that several heads share, of which none was pruned
    heads = range(shape[dim] // width) if shared else layer.heads
    shape[dim] = (len(heads) if shared else layer.total_heads) * full
    rows = (torch.tensor(heads, dtype=torch.long).unsqueeze(1) * full + torch.arange(width)).flatten()
    return tensor.new_zeros(shape).index_copy(dim, rows.to(tensor.device), tensor)


def _pad_feed_forward(state: dict[str, Tensor], expanded: PreTrainedModel, family: Family) -> None:
    """Pads feed-forward layers to the width of the widest with neurons that contribute nothing."""
    classes = family.base.feed_forward_classes
    for name, block in outermost(expanded, classes):
        names = classes[type(block)]
        key = f"{name}.{names.down}.weight"
        transposed = isinstance(expanded.get_submodule(f"{name}.{names.down}"), Conv1D)
        axis = 0 if transposed else 1  # of the neurons
        missing = expanded.get_parameter(key).shape[axis] - state[key].shape[axis]
        state[key] = pad(state[key], (0, 0, 0, missing) if transposed else (0, missing))
        for key in (f"{name}.{up}.{part}" for up in names.ups for part in ("weight", "bias")):
            if key in state:
                last = transposed or state[key].ndim == 1  # axis of the neurons
                halves = state[key].chunk(names.halves, dim=-1 if last else 0)
                padding = (0, missing) if last else (0, 0, 0, missing)
                state[key] = torch.cat([pad(half, padding) for half in halves], dim=-1 if last else 0)


def _lacks_bias(expanded: PreTrainedModel, natives: dict[str, NativeLayer]) -> bool:
    """Whether a layer of the expanded model has no bias of queries or keys but needs one."""
    for name, layer in native_layers(expanded).items():
        native = natives[name]
        for role, bias, weight in (("query", native.query_bias, native.query), ("key", native.key_bias, native.key)):
            large = bool((bias.abs() > rounding(torch.float32) * weight.norm()).any())
            if large and layer.projection(role).bias is None:
                return True
    return False


def _native_config(model: PreTrainedModel, family: Family, native_class: type[PreTrainedModel]) -> PretrainedConfig:
    """The config of the native model."""
    config = model.config
    values = config.to_dict()
    for (part, name), width in _widest(model, family).items() if config.collab_feed_forward else ():
        (values[part] if part else values)[name] = width
    for name in ("model_type", "auto_map", "architectures", *(field.name for field in fields(CollaborativeConfig))):
        values.pop(name, None)
    config_class: Any = family.base.native_class().config_class
    native = config_class(**values)
    kernel = config._attn_implementation
    # Converted models support more kernels than some native ones, which then choose their own.
    supported = {"eager": True, "sdpa": native_class._supports_sdpa, "flex_attention": native_class._supports_flex_attn}
    if supported.get(kernel):
        native._attn_implementation = kernel
    native._output_attentions = config.output_attentions
    native.name_or_path = config.name_or_path
    return native


def _widest(model: PreTrainedModel, family: Family) -> dict[tuple[str, str], int]:
    """By part of the model and entry of its native config, the width of the widest of the layers that it is for."""
    classes = family.base.feed_forward_classes
    widest: dict[tuple[str, str], int] = {}
    for name, block in outermost(model, classes):
        names = classes[type(block)]
        width = as_linear(block.get_submodule(names.down)).in_features
        if names.config_name is not None:
            entry = part_of(model.config, name), names.config_name
            widest[entry] = max(width, widest.get(entry, 0))
    return widest


def _output_difference(model: PreTrainedModel, expanded: nn.Module) -> tuple[float, float]:
    """The largest difference between outputs on random inputs, and the largest output, both absolute."""
    inputs = probe_inputs(model)
    with evaluating(model, expanded), torch.no_grad():
        expected, actual = model(**inputs), expanded(**inputs)
    tensors = {name: value for name, value in expected.items() if isinstance(value, Tensor)}
    difference = max(float((value - actual[name]).abs().max()) for name, value in tensors.items())
    return difference, max(float(value.abs().max()) for value in tensors.values())
