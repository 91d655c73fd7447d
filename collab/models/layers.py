"""The attention layers of a model, native or converted."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel

from ..errors import ConfigurationError, UnsupportedArchitectureError
from ..modeling.collab_attention import CollaborativeAttention
from ..modeling.collab_disentangled import CollaborativeDisentangledAttention, PositionTerms
from ..modeling.collab_native import LayerKind
from ..modeling.collab_rotary import CollaborativeRotaryAttention
from .families import family_of

FACTORS = ("query", "key", "mixing", "content_bias", "query_offset", "position_content")
"""Parts of a collaborative layer that compute its scores, in place of native query and key projections."""


class AttentionLayer:
    """An attention layer of a model, native or converted.

    Args:
        model: the model.
        name: the layer's module name.
        collaborative: the collaborative class that the layer has, or that would replace it.

    Attributes:
        name: module name.
        module: the layer.
        collaborative: as passed.
        converted: the layer if it is collaborative, None if it is native.
        output_name: module name of the output projection W_O, inside the layer or in the block around it.
        output: the output projection.
    """

    def __init__(self, model: PreTrainedModel, name: str, collaborative: type[CollaborativeAttention]) -> None:
        self.name = name
        self.module: Any = model.get_submodule(name)
        self.collaborative = collaborative
        self.converted = self.module if isinstance(self.module, CollaborativeAttention) else None
        inside = "dense" in collaborative.native_names
        self.output_name = f"{name}.{self.name_of('dense')}" if inside else collaborative.output_name(name)
        self.output = model.get_submodule(self.output_name)

    @property
    def heads(self) -> tuple[int, ...]:
        """Indices of the original heads that the layer has."""
        return tuple(range(self.total)) if self.converted is None else self.converted.heads

    @property
    def total(self) -> int:
        """Number of heads of the original layer."""
        return self.collaborative.heads_of(self.module) if self.converted is None else self.converted.total_heads

    @functools.cached_property  # GPT-2's projections are copies
    def head_dim(self) -> int:
        """The head dimension d of the original layer."""
        if self.converted is not None:
            return self.converted.attention_head_size
        return self.projection("query").out_features // self.total

    @property
    def value_width(self) -> int:
        """The width of each head's values: d, or less after a compression."""
        return self.head_dim if self.converted is None else self.converted.value_width

    @property
    def full_rank(self) -> int:
        """K, the width of the original queries."""
        return self.total * self.head_dim

    @property
    def kind(self) -> LayerKind:
        """Attention of a sequence to itself in an encoder or, causal, in a decoder; or of a decoder to another."""
        return self.collaborative.kind_of(self.module) if self.converted is None else self.converted.kind

    @property
    def rotary(self) -> bool:
        """Whether queries and keys are rotated by their positions, so that no single A_h gives the scores."""
        return issubclass(self.collaborative, CollaborativeRotaryAttention)

    @property
    def positions(self) -> PositionTerms | None:
        """The terms of disentangled positions; None for most layers."""
        if not issubclass(self.collaborative, CollaborativeDisentangledAttention):
            return None
        return self.collaborative.terms_of(self.module) if self.converted is None else self.module.terms

    def name_of(self, role: str) -> str:
        """The name in the layer of the module that computes ``query``, ``key``, ``value`` or ``dense``."""
        return self.collaborative.native_names[role] if self.converted is None else role

    def roles_of(self, name: str) -> list[str]:
        """The roles of a module in the layer; several if it is fused, each for as many of its rows, in this order."""
        return self.collaborative.roles_of(name) if self.converted is None else [name]

    def projection(self, role: str) -> nn.Linear:
        """The ``query``, ``key`` or ``value`` projection, of a fused one a view of its rows; absent without heads."""
        if self.converted is None:
            return self.collaborative.native_projection(self.module, role)
        return getattr(self.module, role)

    @property
    def shares_values(self) -> bool:
        """Whether several heads read the same values (grouped keys and values)."""
        return bool(self.heads) and self.projection("value").out_features < len(self.heads) * self.value_width

    @property
    def query_key_parameters(self) -> int:
        """Parameters of query and key projections with biases, and of mixing and content terms if converted."""
        if self.converted is not None:
            return count_factors(self.converted)
        return sum(count_parameters(self.projection(role)) for role in ("query", "key"))

    @property
    def value_output_parameters(self) -> int:
        """Parameters of value and output projections with their biases."""
        return count_parameters(self.projection("value") if self.heads else None) + count_parameters(self.output)


def output_width(output: nn.Module) -> int:
    """D of an output projection, also of one without heads before it."""
    return output.out_features if isinstance(output, nn.Linear) else output.width  # type: ignore[return-value]


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
    """Parameters of the model, of its attention, and of queries and keys; see `AttentionLayer`."""
    layers = attention_layers(model)
    query_key = sum(layer.query_key_parameters for layer in layers)
    return {
        "query_key": query_key,
        "attention": query_key + sum(layer.value_output_parameters for layer in layers),
        "model": count_parameters(model),
    }


def attention_layers(model: PreTrainedModel) -> list[AttentionLayer]:
    """All attention layers, in the order of the model; one that it applies several times (ALBERT) is listed once.

    Raises:
        UnsupportedArchitectureError: if the model belongs to no family or has no attention layers.
    """
    layers = _layers(model)
    if not layers:
        raise UnsupportedArchitectureError("The model has no attention layers.")
    return layers


def native_layers(model: PreTrainedModel) -> dict[str, AttentionLayer]:
    """The attention layers that are not converted, by module name, in the order of the model.

    Raises:
        UnsupportedArchitectureError: if the model belongs to no family.
    """
    return {layer.name: layer for layer in _layers(model) if layer.converted is None}


def _layers(model: PreTrainedModel) -> list[AttentionLayer]:
    known: dict[type[nn.Module], type[CollaborativeAttention]] = family_of(model).base.attention_classes
    classes = {
        name: type(module) if isinstance(module, CollaborativeAttention) else known.get(type(module))
        for name, module in model.named_modules()
    }
    return [AttentionLayer(model, name, attention) for name, attention in classes.items() if attention is not None]


def check_numbers(layers: Sequence[AttentionLayer], numbers: Iterable[int]) -> None:
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


class Dropped(NamedTuple):
    """Numbers, in the original, of the layers that a converted model lacks.

    Attributes:
        layers: those of the model's only stack, or of an encoder-decoder's encoder.
        decoder: those of an encoder-decoder's decoder.
    """

    layers: tuple[int, ...] = ()
    decoder: tuple[int, ...] = ()


ALL_THERE = Dropped()
"""No layer is missing."""


def dropped_layers(model: nn.Module) -> Dropped:
    """The layers of the original that a converted model lacks; a trainer may have wrapped the model."""
    config = getattr(model, "module", model).config
    names = ("collab_dropped_layers", "collab_dropped_decoder_layers")
    return Dropped(*(tuple(getattr(config, name, None) or ()) for name in names))


def part_of(config: Any, name: str) -> str:
    """The part of a model that a module of that name is in, ``encoder`` or ``decoder``; empty without part configs."""
    part = name.partition(".")[0]
    return part if isinstance(getattr(config, part, None), PretrainedConfig) else ""


def config_of(config: Any, name: str) -> Any:
    """The config of the part of a model that a module of that name is in; the model's own without part configs."""
    part = part_of(config, name)
    return getattr(config, part) if part else config


def layer_count(config: Any, decoder: bool) -> int:
    """The number of layers that a config says.

    Args:
        config: of any model.
        decoder: of an encoder-decoder, whether the number is that of the decoder's layers.
    """
    return getattr(*_count_of(config, decoder))


def set_layer_count(config: Any, decoder: bool, count: int) -> None:
    """Sets the number of layers in a config; arguments as in `layer_count`."""
    setattr(*_count_of(config, decoder), count)


_COUNTS = ("encoder_layers", "num_layers"), ("decoder_layers", "num_decoder_layers")


def _count_of(config: Any, decoder: bool) -> tuple[Any, str]:
    """The config that has the number of layers, and the entry."""
    own = config_of(config, ("encoder", "decoder")[decoder])
    if own is not config or not config.is_encoder_decoder:
        return own, "num_hidden_layers"
    return config, next(name for name in _COUNTS[decoder] if hasattr(config, name))
