"""Shapes, parameters and arithmetic of a model's attention, without reading its weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from transformers import PreTrainedModel

from ..decomposition import form_named
from ..errors import ConfigurationError
from ..evaluation.options import REPORTED_LENGTHS
from ..io.checkpoint import Checkpoint
from ..modeling.collab_config import LongRows
from ..modeling.collab_native import LayerKind
from ..models.cache import CacheBytes, cache_bytes
from ..models.inputs import encoder_of, lengths_within
from ..models.layers import (
    AttentionLayer,
    attention_layers,
    dropped_layers,
    layer_count,
    parameters,
    passes_per_layer,
)
from ..models.widths import LayerWidths, layer_widths
from ..planning.cost import LayerShape
from ..steps.history import History


@dataclass(frozen=True)
class LayerInspection:
    """An attention layer.

    Attributes:
        name: module name.
        kind: ``encoder``, ``decoder`` or ``cross``: attention of a sequence to itself in an encoder or, causal, in a
            decoder; or of a decoder to another sequence.
        form: ``original``, ``concat``, ``cp`` or ``tucker``.
        heads: H, without pruned ones.
        head_dim: d.
        rank: R; K for an original layer.
        shapes: parameter shapes by name.
        query_key: parameters of queries and keys.
        value_output: parameters of values and output projection.
        flops: by sequence length, 2 × the multiply-adds of query/key projections, scores and content term for one
            sequence.
        flops_original: the same for the original layer.
        rank_original: K.
        value_width: dimensions of a head's values.
        neurons: width of the feed-forward layer that follows; None if it is not known.
        neurons_original: the same in the original.
        long: how long rows are computed in blocks, as in the config (`AttentionSpec.long`); None if like short ones.
    """

    name: str
    kind: LayerKind
    form: str
    heads: int
    head_dim: int
    rank: int
    shapes: dict[str, tuple[int, ...]]
    query_key: int
    value_output: int
    flops: dict[int, int]
    flops_original: dict[int, int]
    rank_original: int
    value_width: int
    neurons: int | None = None
    neurons_original: int | None = None
    long: dict[str, Any] | None = None


@dataclass(frozen=True)
class Inspection:
    """A model's attention.

    Attributes:
        model_type: model type in the config.
        hidden_size: D.
        layers: one entry per attention layer.
        passes: how often one forward pass of the model runs each attention layer; above 1 where weights are shared.
        parameters: counts for queries and keys, attention and the whole model.
        cache: what the cache of a decoder holds for each token; None for an encoder.
        explanation: sentences that explain the counts.
        history: history of the model, as in its folder.
    """

    model_type: str
    hidden_size: int
    layers: tuple[LayerInspection, ...]
    passes: float
    parameters: dict[str, int]
    cache: CacheBytes | None
    explanation: tuple[str, ...]
    history: History = field(default_factory=History)

    def to_dict(self) -> dict[str, Any]:
        """The inspection as JSON values."""
        return {name: value for name, value in asdict(self).items() if name != "history"} | {
            "report": self.history.report
        }


def inspect(
    model: Checkpoint | PreTrainedModel, *, lengths: Sequence[int] | None = None, history: History | None = None
) -> Inspection:
    """Describes the attention of a model in memory.

    Args:
        model: original or converted.
        lengths: sequence lengths T to count the arithmetic for, in tokens; None for 32, 128 and 512, or what the model
            accepts where that is less.
        history: its history; None for that of the checkpoint.

    Raises:
        ConfigurationError: if a length is below 1, or there is none.
    """
    checkpoint = Checkpoint.of(model)
    model = checkpoint.model
    lengths = lengths_within(model, REPORTED_LENGTHS) if lengths is None else lengths
    if not lengths or min(lengths) < 1:
        raise ConfigurationError("Lengths must be at least 1 token.")
    layers = attention_layers(model)
    widths = layer_widths(model)
    inspections = tuple(_layer(layer, lengths, own) for layer, own in zip(layers, widths, strict=True))
    return Inspection(
        model.config.model_type,
        encoder_of(model).config.hidden_size,
        inspections,
        passes_per_layer(model, len(layers)),
        parameters(model),
        cache_bytes(model),
        tuple(_explain(model, layers, inspections)),
        history or checkpoint.history,
    )


def _layer(layer: AttentionLayer, lengths: Sequence[int], widths: LayerWidths) -> LayerInspection:
    module = layer.converted
    parts = {role: layer.projection(role) for role in ("query", "key", "value") if layer.heads}
    shapes = {
        f"{part}.{name}": tuple(parameter.shape)
        for part, owner in {**parts, "output": layer.output}.items()
        for name, parameter in owner.named_parameters()
    }
    form, rank, content = "original", layer.full_rank, "exact"
    if module is not None:
        form, rank = module.spec.form, module.spec.rank
        content = "folded" if module.query_offset is not None else "exact"
        for name in ("mixing", "query_offset"):
            if getattr(module, name, None) is not None:
                shapes[name] = tuple(getattr(module, name).shape)
        for name in ("content_bias", "position_content"):
            if getattr(module, name, None) is not None:
                shapes[name] = tuple(getattr(module, name).weight.shape)
    flops: dict[int, int] = dict.fromkeys(lengths, 0)
    original: dict[int, int] = dict.fromkeys(lengths, 0)
    long = None if module is None else module.spec.long
    shape = LayerShape.of_layer(layer)
    whole = replace(shape, num_heads=layer.total)
    for length in lengths:
        original[length] = whole.flops_before(length)
        if form == "original":
            flops[length] = original[length]
        elif layer.heads:
            keys = None if long is None else long.keys(length, layer.kind == "decoder")
            key_dims = parts["key"].out_features
            flops[length] = shape.flops(form, rank, content, length, keys, key_dims)  # type: ignore[arg-type]
    return LayerInspection(
        layer.name,
        layer.kind,
        form,
        len(layer.heads),
        layer.head_dim,
        rank,
        shapes,
        layer.query_key_parameters,
        layer.value_output_parameters,
        flops,
        original,
        widths.full_rank,
        widths.value_width,
        widths.neurons,
        widths.full_neurons,
        None if long is None else asdict(long),
    )


def _narrower(
    model: PreTrainedModel, layers: Sequence[AttentionLayer], inspections: Sequence[LayerInspection]
) -> list[str]:
    """What besides queries and keys is narrower in a converted model than in the original, and what is not."""
    sentences = []
    living = [inspection for inspection in inspections if inspection.value_width]
    if any(inspection.value_width < inspection.head_dim for inspection in living):
        values = _range([inspection.value_width for inspection in living])
        head_dim = _range([inspection.head_dim for inspection in living])
        sentences.append(f"The values of a head have {values} dimensions instead of {head_dim}.")
    elif all(inspection.heads == layer.total for inspection, layer in zip(inspections, layers, strict=True)):
        sentences.append("Values and the output projection are as wide as in the original.")
    widths = [inspection.neurons for inspection in inspections if inspection.neurons is not None]
    full = [inspection.neurons_original for inspection in inspections if inspection.neurons_original is not None]
    if widths != full:
        sentences.append(f"The feed-forward layers have {_range(widths)} neurons instead of {full[0]}.")
    return sentences + _left_out(model)


def _left_out(model: PreTrainedModel) -> list[str]:
    """Which of the original's layers a model lacks, if it lacks any: a sentence for each stack."""
    sentences = []
    for decoder, dropped in enumerate(dropped_layers(model)):
        if not dropped:
            continue
        several = len(dropped) > 1
        total = len(dropped) + layer_count(model.config, bool(decoder))
        sentences.append(
            f"Of the original's {total} layers{' of the decoder' if decoder else ''}, numbered from 0, "
            f"layer{'s' if several else ''} {', '.join(map(str, dropped))} {'are' if several else 'is'} left out; "
            "names of layers here are those in this model."
        )
    return sentences


def _long_rows(inspections: Sequence[LayerInspection]) -> list[str]:
    """How long rows are computed in blocks, if they are."""
    layers = [LongRows(**inspection.long) for inspection in inspections if inspection.long is not None]
    if not layers:
        return []
    causal = any(inspection.kind == "decoder" for inspection in inspections if inspection.long is not None)
    kinds = " or ".join(dict.fromkeys(long.kind for long in layers))
    first = layers[0]
    rest = "" if first.summaries is None else f", and the rest by summaries ({first.summaries})"
    most, forgets = (" at most", "; a cache forgets what no token to come sees") if causal else ("", "")
    return [
        f"In rows of {first.dense_below} tokens or more, {len(layers)} of {len(inspections)} layers have {kinds} "
        f"attention: a token sees {first.window(causal)} others{most}, in blocks "
        f"of {first.block} and {first.global_tokens} global{rest}{forgets}."
    ]


def _range(widths: Sequence[int]) -> str:
    """The widths from the least to the largest."""
    least, most = min(widths), max(widths)
    return str(least) if least == most else f"{least} to {most}"


def _width(layer: AttentionLayer) -> int:
    """D: width of the input of the queries."""
    return layer.projection("query").in_features if layer.heads else layer.full_rank


def _by_shape(layers: Sequence[AttentionLayer]) -> dict[tuple[int, int, int], int]:
    """The D of layers with the same K, H and d in the original; a decoder's may differ from its encoder's."""
    shapes: dict[tuple[int, int, int], int] = {}
    for layer in sorted(layers, key=lambda layer: not layer.heads):  # a layer without heads no longer tells its D
        shapes.setdefault((layer.full_rank, layer.total, layer.head_dim), _width(layer))
    return shapes


def _splits(layers: Sequence[AttentionLayer]) -> list[str]:
    """How the original splits its matrices into heads, and what another number of heads would change."""
    matrices, products = [], []
    shapes = _by_shape(layers)
    for (full, heads, head_dim), width in shapes.items():
        alike = [layer for layer in layers if (layer.full_rank, layer.total, layer.head_dim) == (full, heads, head_dim)]
        where = "" if len(shapes) == 1 else f"in {len(alike)} of {len(layers)} layers "
        matrices.append(
            f"{where}one {width}×{full} matrix of queries, and one of keys, into {heads} heads of d = {full}/{heads} = "
            f"{head_dim} columns each"
        )
        products.append(f"{where}T² scores for each of {heads} heads, of {head_dim} products each, are {full}·T²")
    return [
        f"The original splits {'; '.join(matrices)}. Another number of heads splits the same matrices in other places: "
        "the parameters stay the same; only which dimensions each head compares changes.",
        f"The multiply-adds of the scores stay the same, too: {'; '.join(products)} whatever the number of heads. The "
        "softmax alone grows with it.",
    ]


def _explain(
    model: PreTrainedModel, layers: list[AttentionLayer], inspections: tuple[LayerInspection, ...]
) -> list[str]:
    head_dim = _range([layer.head_dim for layer in layers])
    sentences = _splits(layers)
    converted = [inspection for inspection in inspections if inspection.form != "original"]
    if converted:
        ranks = _range([each.rank for each in converted])
        whole = all(each.rank == each.rank_original for each in converted)
        full = _range([each.rank_original for each in converted])
        forms = {each.form: form_named(each.form) for each in converted}
        sharing = "; ".join(
            form.sharing if len(forms) == 1 else f"in the form {name} {form.sharing}" for name, form in forms.items()
        )
        sentences.append(
            f"The queries and keys of a layer have {ranks} dimensions for all heads together (R, the rank)"
            f"{', as in the original' if whole else f' instead of {full}'}; {sharing}."
        )
        sentences += _narrower(model, layers, inspections)
        sentences += _long_rows(converted)
        if not all(form.separate for form in forms.values()):
            sentences.append(
                f"A head's scores run over R dimensions instead of {head_dim}, so where R is above {head_dim} long "
                "sequences cost more arithmetic than in the original, and short ones less: the projections shrink."
            )
    pruned = sum(layer.total - len(layer.heads) for layer in layers)
    if pruned:
        each = ""
        shapes = _by_shape(layers)
        if len(shapes) == 1 and all(inspection.value_width in (0, layers[0].head_dim) for inspection in inspections):
            weights = 2 * layers[0].head_dim * next(iter(shapes.values()))
            each = f", each with {weights:,} weights of values and output projection"
        sentences.append(f"{pruned} of {sum(layer.total for layer in layers)} heads were pruned{each}.")
    passes = passes_per_layer(model, len(layers))
    if passes > 1:
        sentences.append(
            f"{len(layers)} sets of weights serve {round(passes * len(layers))} passes: the model stores their "
            "parameters once and runs their arithmetic in every pass."
        )
    return sentences
