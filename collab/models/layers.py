"""The attention layers of a model, original or converted, and the heads that each has."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torch import Tensor, nn
from transformers import PreTrainedModel

from ..errors import ConfigurationError, UnsupportedArchitectureError
from ..modeling.collab_attention import CollaborativeAttention
from .families import Family, collaborative_layers, families, refuse_unsupported


@dataclass(frozen=True)
class HeadLayer:
    """One attention layer; where several passes of a model share its weights (ALBERT), it is there once.

    Attributes:
        name: module name.
        module: the layer, native or collaborative.
        heads: which of the original's heads it has.
        total: how many the original had.
        head_dim: d.
        query: its query projection, as `key` and `value`; None where it has no heads.
        output: the output projection W_O, wherever the family keeps it.
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

    @property
    def query_key_parameters(self) -> int:
        """Parameters of query and key projections with their biases; with mixing and content term where converted."""
        parts: list[nn.Module | nn.Parameter | None] = [self.query, self.key]
        if isinstance(self.module, CollaborativeAttention):
            parts += [getattr(self.module, name, None) for name in ("mixing", "content_bias", "query_offset")]
        return sum(map(count_parameters, parts))

    @property
    def value_output_parameters(self) -> int:
        """Parameters of value and output projections with their biases."""
        return count_parameters(self.value) + count_parameters(self.output)


def count_parameters(part: nn.Module | Tensor | None) -> int:
    """Parameters of a model or of a part of one, tied ones once; 0 for what is not there."""
    if part is None:
        return 0
    return part.numel() if isinstance(part, Tensor) else sum(parameter.numel() for parameter in part.parameters())


def count_bytes(tensors: Iterable[Tensor]) -> int:
    """Bytes that tensors take."""
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
        UnsupportedArchitectureError: if it is of none.
    """
    for family in families().values():
        if model.config.model_type in (family.native_model_type, family.config_class.model_type):
            return family
    refuse_unsupported(model.config.model_type)
    raise UnsupportedArchitectureError(f"collab does not know models of type {model.config.model_type!r}.")


def head_layers(model: PreTrainedModel) -> list[HeadLayer]:
    """Every attention layer, in the order of the model.

    Raises:
        UnsupportedArchitectureError: if the model is of no family, or has no attention layers.
    """
    family = family_of(model)
    total = model.config.num_attention_heads
    found = [_converted(model, name, one, total) for name, one in collaborative_layers(model).items()]
    for name, layer in family.attention_layers(model).items():
        query, key, value = (getattr(layer, family.names(layer)[one]) for one in ("query", "key", "value"))
        output = family.output_projection(model, name)
        width = query.out_features // total
        found.append(HeadLayer(name, layer, tuple(range(total)), total, width, query, key, value, output))
    if not found:
        raise UnsupportedArchitectureError("The model has no attention layers.")
    return found


def check_numbers(layers: Sequence[HeadLayer], numbers: Iterable[int]) -> None:
    """Raises a ConfigurationError for the number of a layer that is not there."""
    for number in numbers:
        if not 0 <= number < len(layers):
            raise ConfigurationError(f"There is no attention layer {number}: the model has 0 to {len(layers) - 1}.")


def passes_per_layer(model: PreTrainedModel, layers: list[HeadLayer]) -> float:
    """How many passes of the model a layer serves: 1, but more where passes share weights (ALBERT)."""
    config = model.config
    passes = (getattr(config, "num_hidden_layers", None) or len(layers)) * getattr(config, "inner_group_num", 1)
    return passes / len(layers)


def _converted(model: PreTrainedModel, name: str, layer: CollaborativeAttention, total: int) -> HeadLayer:
    output = model.get_submodule(layer.output_name(name))
    query, key, value = (getattr(layer, one) if layer.heads else None for one in ("query", "key", "value"))
    return HeadLayer(name, layer, layer.heads, total, layer.attention_head_size, query, key, value, output)
