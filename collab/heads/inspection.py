"""What a model's attention is made of: shapes, parameters and arithmetic, without its weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from ..errors import ConfigurationError
from ..modeling.collab_attention import CollaborativeAttention
from ..models.layers import HeadLayer, head_layers, parameters, passes_per_layer
from ..planning.cost import LayerShape

LENGTHS = (32, 128, 512)


@dataclass(frozen=True)
class LayerInspection:
    """An attention layer.

    Attributes:
        name: module name.
        form: ``original``, ``concat``, ``cp`` or ``tucker``.
        heads: H, those that it has.
        head_dim: d.
        rank: R, or K of an original layer.
        shapes: of its parameters, by name.
        query_key: parameters of queries and keys.
        value_output: parameters of values and output projection.
        flops: multiply-adds ×2 of query/key projections, scores and content term for one sequence, by length.
        flops_original: the same of the original layer.
    """

    name: str
    form: str
    heads: int
    head_dim: int
    rank: int
    shapes: dict[str, tuple[int, ...]]
    query_key: int
    value_output: int
    flops: dict[int, int]
    flops_original: dict[int, int]


@dataclass(frozen=True)
class Inspection:
    """A model's attention.

    Attributes:
        model_type: of the config.
        hidden_size: D.
        layers: one for each attention layer.
        passes: of the model that a layer serves.
        parameters: of queries and keys, of attention, of the model.
        explanation: why the counts are what they are, in sentences.
        report: of a converted model, as its folder has it.
    """

    model_type: str
    hidden_size: int
    layers: tuple[LayerInspection, ...]
    passes: float
    parameters: dict[str, int]
    explanation: tuple[str, ...]
    report: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """The inspection as JSON values."""
        return asdict(self)


def inspect(
    model: PreTrainedModel, *, lengths: Sequence[int] = LENGTHS, report: dict[str, Any] | None = None
) -> Inspection:
    """Looks at a model in memory.

    Args:
        model: original or converted.
        lengths: tokens to count the arithmetic for.
        report: of its conversion.
    """
    if not lengths or min(lengths) < 1:
        raise ConfigurationError("Lengths must be at least 1 token.")
    found = head_layers(model)
    layers = tuple(_layer(one, lengths) for one in found)
    return Inspection(
        model.config.model_type,
        model.config.hidden_size,
        layers,
        passes_per_layer(model, found),
        parameters(model),
        tuple(_explain(model, found, layers)),
        report or {},
    )


def _layer(layer: HeadLayer, lengths: Sequence[int]) -> LayerInspection:
    module = layer.module
    parts: dict[str, nn.Module | None] = {"query": layer.query, "key": layer.key, "value": layer.value}
    shapes = {
        f"{part}.{name}": tuple(one.shape)
        for part, owner in {**parts, "output": layer.output}.items()
        if owner is not None
        for name, one in owner.named_parameters()
    }
    form, rank, content = "original", layer.total * layer.head_dim, "exact"
    if isinstance(module, CollaborativeAttention):
        form, rank = module.spec.form, module.spec.rank
        content = "folded" if module.query_offset is not None else "exact"
        for name in ("mixing", "query_offset"):
            if getattr(module, name, None) is not None:
                shapes[name] = tuple(getattr(module, name).shape)
        if module.content_bias is not None:
            shapes["content_bias"] = tuple(module.content_bias.weight.shape)
    flops: dict[int, int] = dict.fromkeys(lengths, 0)
    original: dict[int, int] = dict.fromkeys(lengths, 0)
    width = _width(layer)
    biased = "query.bias" in shapes or "content_bias" in shapes or "query_offset" in shapes
    shape = LayerShape(width, width, len(layer.heads), layer.head_dim, biased, biased)
    whole = LayerShape(width, width, layer.total, layer.head_dim, biased, biased)
    for length in lengths:
        original[length] = whole.flops_before(length)
        if form == "original":
            flops[length] = original[length]
        elif layer.heads:
            flops[length] = shape.flops(form, rank, content, length)  # type: ignore[arg-type]
    return LayerInspection(
        layer.name,
        form,
        len(layer.heads),
        layer.head_dim,
        rank,
        shapes,
        layer.query_key_parameters,
        layer.value_output_parameters,
        flops,
        original,
    )


def _width(layer: HeadLayer) -> int:
    """D, of the input of queries."""
    if layer.query is not None:
        return layer.query.in_features
    return layer.total * layer.head_dim


def _explain(model: PreTrainedModel, found: list[HeadLayer], layers: tuple[LayerInspection, ...]) -> list[str]:
    one = found[0]
    width, heads, head_dim = _width(one), one.total, one.head_dim
    full = heads * head_dim
    said = [
        f"The original splits one {width}×{full} matrix of queries, and one of keys, into {heads} heads of d = {full}/"
        f"{heads} = {head_dim} columns each. Another number of heads splits the same matrices in other places: the "
        "parameters stay the same, and only what is compared with what changes.",
        f"So do the multiply-adds of the scores: T² scores for each of {heads} heads, of {head_dim} products each, are "
        f"{full}·T² whatever the number of heads. The softmax alone grows with it.",
    ]
    converted = [layer for layer in layers if layer.form != "original"]
    if converted:
        first = converted[0]
        how = {
            "cp": "every head weighs all of them by its row of the mixing matrix",
            "tucker": "every head combines all of them by its core",
            "concat": "every one belongs to a single head",
        }[first.form]
        said.append(
            f"Converted, the layers have R shared dimensions instead of {full} (here {first.rank} in {first.name}), "
            f"and {how}. Values and the output projection are the original's."
        )
        if first.form != "concat":
            said.append(
                f"A head's scores run over R dimensions instead of {head_dim}, so where R is above {head_dim} long "
                "sequences cost more arithmetic than the original's, and short ones less: the projections shrink."
            )
    pruned = sum(layer.total - len(layer.heads) for layer in found)
    if pruned:
        said.append(
            f"{pruned} of {sum(layer.total for layer in found)} heads were pruned, each with {2 * head_dim * width:,} "
            "weights of values and output projection."
        )
    passes = passes_per_layer(model, found)
    if passes > 1:
        said.append(
            f"Layers of weights: {len(found)}, for {round(passes * len(found))} passes: the model has their parameters "
            "once and their arithmetic many times."
        )
    return said
