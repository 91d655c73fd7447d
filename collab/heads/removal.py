"""Removing heads from a model: their part of M or the cores, of the content term, of W_V and of W_O.

`prune` makes an original a collaborative model first, in the concat form at R = K with a folded content term, which
computes the original attention exactly. So one kind of model, with one config and one way of loading, holds any set of
heads.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..errors import ConfigurationError, UnsupportedArchitectureError
from ..modeling.collab_attention import CollaborativeAttention
from ..modeling.collab_config import AttentionSpec
from ..models.assembly import rebuilt, renumber_alignment
from ..models.families import collaborative_layers
from ..models.layers import FACTORS, AttentionLayer, attention_layers


def remove_heads(model: PreTrainedModel, keep: Mapping[str, Sequence[int]]) -> PreTrainedModel:
    """Removes heads from a collaborative model; the model passed stays unchanged.

    Args:
        model: the model; see `check_separable`. Where passes share a layer's weights (ALBERT), a head is removed from
            all of them.
        keep: by layer name, the heads to keep, as numbers in the original; see `check_keep`. Layers that are not named
            keep all. A layer may lose all its heads; its output is then the bias of its output projection.

    Returns:
        The smaller model; a copy if no head is removed.
    """
    specs: list[AttentionSpec] = []
    places: list[dict[int, int]] = []  # of the heads that stay, by the former ones
    state: dict[str, Tensor] = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    for name, layer in collaborative_layers(model).items():
        kept = layer.heads if name not in keep else tuple(sorted(keep[name]))
        specs.append(_prune_layer(state, name, layer, kept))
        if layer.kind == "cross":
            places.append({layer.heads.index(head): place for place, head in enumerate(kept)})
    config = copy.deepcopy(model.config)
    config.collab_layers = [spec.to_dict() for spec in specs]
    pruned = rebuilt(model, config, {name: tensor.clone() for name, tensor in state.items()})
    renumber_alignment(pruned, places)
    return pruned


def check_keep(model: PreTrainedModel, keep: Mapping[str, Sequence[int]]) -> None:
    """Raises a ConfigurationError if a layer or head to keep is not there or is named twice, or none would be left."""
    layers = {layer.name: layer for layer in attention_layers(model)}
    for name, heads in keep.items():
        if name not in layers:
            raise ConfigurationError(f"There is no attention layer {name}; there are {', '.join(layers)}.")
        missing = sorted(set(heads) - set(layers[name].heads))
        if missing:
            raise ConfigurationError(
                f"{name} has no head {missing[0]}: its heads are {', '.join(map(str, layers[name].heads)) or 'none'}."
            )
        repeated = [head for head in heads if list(heads).count(head) > 1]
        if repeated:
            raise ConfigurationError(f"keep names head {repeated[0]} of {name} twice. Name each head once.")
    if not any(len(keep.get(name, layer.heads)) for name, layer in layers.items()):
        raise ConfigurationError("This would leave the model without a single head. Keep at least one.")


def check_separable(layers: Sequence[AttentionLayer]) -> None:
    """Raises an UnsupportedArchitectureError if several heads share keys and values."""
    if any(layer.shares_values for layer in layers):
        raise UnsupportedArchitectureError(
            "Several heads of this model share keys and values, so a single one cannot be removed. Convert with a "
            "smaller rank instead."
        )


def _prune_layer(
    state: dict[str, Tensor], name: str, layer: CollaborativeAttention, kept: tuple[int, ...]
) -> AttentionSpec:
    """Removes the weights of all other heads from a model's state; returns the layer's new shape."""
    if kept == layer.heads:
        return layer.spec
    spec, width = layer.spec, layer.value_width
    content = "exact" if layer.content_bias is not None else "none" if layer.query_offset is None else "folded"
    output = layer.output_name(name)
    if not kept:
        for parameter in [key for key in state if key.startswith(f"{name}.")]:
            if parameter.removeprefix(f"{name}.").split(".")[0] in ("value", *FACTORS):
                del state[parameter]
        del state[f"{output}.weight"]
        return AttentionSpec(spec.form, 0, None if layer.head_ranks is None else (), content, ())
    places = torch.tensor([layer.heads.index(head) for head in kept])
    rows = (places.unsqueeze(1) * width + torch.arange(width)).flatten()  # of W_Vᵀ

    def cut(parameter: str, index: Tensor, dim: int = 0) -> None:
        if parameter in state:
            state[parameter] = state[parameter].index_select(dim, index.to(state[parameter].device))

    cut(f"{name}.value.weight", rows)
    cut(f"{name}.value.bias", rows)
    cut(f"{output}.weight", rows, 1)
    cut(f"{name}.content_bias.weight", places)
    cut(f"{name}.position_content.weight", places)
    rank, head_ranks, frequencies = spec.rank, None, spec.frequencies
    if layer.head_ranks is None:
        cut(f"{name}.mixing", places)
        cut(f"{name}.query_offset", places)
    else:
        owner = torch.repeat_interleave(torch.arange(len(layer.heads)), torch.tensor(layer.head_ranks))  # (R,)
        if frequencies is not None:  # complex dimensions: all real parts come before the imaginary ones
            owner = owner[::2].repeat(2)
        dimensions = torch.isin(owner, places).nonzero().flatten()
        unowned = not len(dimensions)
        if unowned:  # heads of uniform attention share one dimension of zeros
            dimensions = torch.zeros(1, dtype=torch.long) if frequencies is None else torch.tensor([0, len(owner) // 2])
        for side in ("query", "key"):
            cut(f"{name}.{side}.weight", dimensions)
            cut(f"{name}.{side}.bias", dimensions)
        cut(f"{name}.query_offset", dimensions, 1)
        head_ranks = tuple(layer.head_ranks[place] for place in places.tolist())
        if unowned:
            head_ranks = (len(dimensions), *head_ranks[1:])
            for parameter in ("query.weight", "query.bias", "query_offset"):
                if f"{name}.{parameter}" in state:
                    state[f"{name}.{parameter}"] = torch.zeros_like(state[f"{name}.{parameter}"])
        if frequencies is not None:
            frequencies = tuple(frequencies[place] for place in dimensions.tolist() if place < len(frequencies))
        rank = sum(head_ranks)
    heads = None if len(kept) == layer.total_heads else kept
    return replace(spec, rank=rank, head_ranks=head_ranks, content=content, heads=heads, frequencies=frequencies)
