"""The attention layers of a model, original or converted, and the heads that each has."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torch import Tensor, nn
from transformers import PreTrainedModel

from ..errors import ConfigurationError, UnsupportedArchitectureError
from ..modeling.collab_attention import CollaborativeAttention, LayerKind
from ..modeling.collab_disentangled import CollaborativeDisentangledAttention, PositionTerms
from ..modeling.collab_rotary import CollaborativeRotaryAttention
from .families import Family, collaborative_layers, families, native_type, refuse_unsupported

FACTORS = ("query", "key", "mixing", "content_bias", "query_offset", "position_content")
"""Parts of a collaborative layer that compute its scores, in place of native query and key projections."""


@dataclass(frozen=True)
class HeadLayer:
    """One attention layer; a layer that the model applies several times (ALBERT) is listed once.

    Attributes:
        name: module name.
        module: the layer, native or collaborative.
        heads: indices of the original heads that it has.
        total: number of heads of the original layer.
        head_dim: d.
        query: query projection; None without heads, as `key` and `value`.
        key: key projection.
        value: value projection.
        output: output projection W_O, inside the layer or in the block around it.
        rotary: whether queries and keys are rotated by their positions, so that no single A_h gives the scores.
        weights_index: index of the attention weights in what the layer returns.
        positions: the terms of disentangled positions; None for most layers.
        kind: attention of a sequence to itself in an encoder or, causal, in a decoder; or of a decoder to another.
    """

    name: str
    module: nn.Module
    heads: tuple[int, ...]
    total: int
    head_dim: int
    query: nn.Linear | None
    key: nn.Linear | None
    value: nn.Linear | None
    output: nn.Module
    rotary: bool = False
    weights_index: int = 1
    positions: PositionTerms | None = None
    kind: LayerKind = "encoder"

    @property
    def shares_values(self) -> bool:
        """Whether several heads read the same values (grouped keys and values)."""
        width = getattr(self.module, "value_width", self.head_dim)
        return self.value is not None and self.value.out_features < len(self.heads) * width

    @property
    def query_key_parameters(self) -> int:
        """Parameters of query and key projections with biases, and of mixing and content terms if converted."""
        if isinstance(self.module, CollaborativeAttention):
            return count_factors(self.module)
        return count_parameters(self.query) + count_parameters(self.key)

    @property
    def value_output_parameters(self) -> int:
        """Parameters of value and output projections with their biases."""
        return count_parameters(self.value) + count_parameters(self.output)


def count_parameters(part: nn.Module | Tensor | None) -> int:
    """Parameters of a model, a module or a tensor, tied ones counted once; 0 for None."""
    if part is None:
        return 0
    return part.numel() if isinstance(part, Tensor) else sum(parameter.numel() for parameter in part.parameters())


def count_factors(layer: CollaborativeAttention) -> int:
    """Parameters of a collaborative layer that compute its scores."""
    return sum(count_parameters(getattr(layer, name, None)) for name in FACTORS)


def count_bytes(tensors: Iterable[Tensor]) -> int:
    """Bytes of the tensors' elements."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def parameters(model: PreTrainedModel) -> dict[str, int]:
    """Parameters of the model, of its attention, and of queries and keys; see `HeadLayer`."""
    layers = head_layers(model)
    query_key = sum(layer.query_key_parameters for layer in layers)
    return {
        "query_key": query_key,
        "attention": query_key + sum(layer.value_output_parameters for layer in layers),
        "model": count_parameters(model),
    }


def family_of(model: PreTrainedModel) -> Family:
    """The family of a native or a converted model.

    Raises:
        UnsupportedArchitectureError: if it belongs to none.
    """
    family = families().get(native_type(model.config.model_type))
    if family is None:
        refuse_unsupported(model.config.model_type)
        raise UnsupportedArchitectureError(f"collab does not know models of type {model.config.model_type!r}.")
    family.check_config(model.config)
    return family


def head_layers(model: PreTrainedModel) -> list[HeadLayer]:
    """All attention layers, in the order of the model.

    Raises:
        UnsupportedArchitectureError: if the model belongs to no family or has no attention layers.
    """
    family = family_of(model)
    layers = [_converted(model, name, layer) for name, layer in collaborative_layers(model).items()]
    for name, layer in family.attention_layers(model).items():
        query, key, value = (family.projection(layer, role) for role in ("query", "key", "value"))
        total = family.num_heads(layer)
        output = family.output_projection(model, name)
        width = query.out_features // total
        layers.append(
            HeadLayer(
                *(name, layer, tuple(range(total)), total, width, query, key, value, output),
                rotary=family.is_rotary(layer),
                weights_index=family.weights_index(layer),
                positions=family.position_terms(layer),
                kind=family.kind(layer),
            )
        )
    if not layers:
        raise UnsupportedArchitectureError("The model has no attention layers.")
    return layers


def check_numbers(layers: Sequence[HeadLayer], numbers: Iterable[int]) -> None:
    """Raises a ConfigurationError for the index of a layer that does not exist."""
    for number in numbers:
        if not 0 <= number < len(layers):
            raise ConfigurationError(f"There is no attention layer {number}: the model has 0 to {len(layers) - 1}.")


def passes_per_layer(model: PreTrainedModel, count: int) -> float:
    """How many times a model of `count` attention layers applies each: 1, or more if passes share weights (ALBERT)."""
    config = model.config
    passes = (getattr(config, "num_hidden_layers", None) or count) * getattr(config, "inner_group_num", 1)
    return max(1.0, passes / count)  # a decoder with cross-attention has several layers of attention in each


def entry_of(model: PreTrainedModel, name: str) -> str:
    """The name of the layer that a module is in: an entry of the model's list of layers.

    Raises:
        UnsupportedArchitectureError: if it is in no list.
    """
    parts = name.split(".")
    for length in range(len(parts) - 1, 0, -1):
        entries = model.get_submodule(".".join(parts[:length]))
        # A list of different modules is one layer in parts: attention and feed-forward layer of a block of T5.
        if isinstance(entries, nn.ModuleList) and parts[length].isdigit() and len(set(map(type, entries))) == 1:
            return ".".join(parts[: length + 1])
    raise UnsupportedArchitectureError(f"{name} is not in a list of layers.")


def dropped_layers(model: nn.Module) -> tuple[int, ...]:
    """The numbers of the original's layers that a converted model lacks; a trainer may have wrapped the model."""
    return tuple(getattr(getattr(model, "module", model).config, "collab_dropped_layers", None) or ())


def matched_states(states: Sequence[Tensor], dropped: Sequence[int]) -> list[Tensor]:
    """The original's hidden states that those of a converted model stand for, layer by layer.

    Where layers were dropped, the one before them is to give what entered the layer after them.

    Args:
        states: the original's hidden states: the embeddings, and those after every layer.
        dropped: numbers of the dropped layers.

    Returns:
        One for every layer of the converted model.
    """
    kept = [number for number in range(len(states) - 1) if number not in dropped]
    return [states[number] for number in [*kept[1:], len(states) - 1]]


def _converted(model: PreTrainedModel, name: str, layer: CollaborativeAttention) -> HeadLayer:
    output = model.get_submodule(layer.output_name(name))
    query, key, value = (getattr(layer, role) if layer.heads else None for role in ("query", "key", "value"))
    width = layer.attention_head_size
    rotary = isinstance(layer, CollaborativeRotaryAttention)
    return HeadLayer(
        *(name, layer, layer.heads, layer.total_heads, width, query, key, value, output),
        rotary=rotary,
        weights_index=layer.native_weights,
        positions=layer.terms if isinstance(layer, CollaborativeDisentangledAttention) else None,
        kind=layer.kind,
    )
