"""The model families that collab converts: one for each ``collab_*`` file in `collab.modeling` that defines models.

Importing this module registers the converted models with transformers.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import sys
from collections import UserDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING, CONFIG_MAPPING_NAMES, model_type_to_module_name

from .. import modeling
from ..errors import AlreadyConvertedError, UnsupportedArchitectureError
from ..modeling.collab_attention import CollaborativeAttention, LayerKind
from ..modeling.collab_disentangled import CollaborativeDisentangledAttention, PositionTerms
from ..modeling.collab_model import CollaborativeBase, CollaborativeMixin, family_models
from ..modeling.collab_rotary import CollaborativeRotaryAttention
from .refusals import RELATIVE, refusal_of

_PREFIX = "collab_"
"""What the `model_type` of a converted model has before the native one."""


@dataclass(frozen=True)
class Family:
    """A model family that collab converts.

    Attributes:
        module: its file in `collab.modeling`.
        base: its collaborative base model class, which names the attention layers.
        heads: its collaborative model classes with a head.
    """

    module: ModuleType
    base: type[CollaborativeBase]
    heads: tuple[type[CollaborativeMixin], ...]

    @property
    def models(self) -> tuple[type[CollaborativeMixin], ...]:
        """All collaborative model classes, the base model first."""
        return (self.base, *self.heads)

    @property
    def config_class(self) -> type[PretrainedConfig]:
        """The collaborative config class."""
        return self.base.config_class

    @property
    def native_model_type(self) -> str:
        """`model_type` of the native models."""
        return self.base.native_class().config_class.model_type  # type: ignore[union-attr]

    def collaborative_class(self, native: type[PreTrainedModel]) -> type[CollaborativeMixin] | None:
        """The collaborative version of a native model class, or None if there is none."""
        return next((model for model in self.models if model.native_class() is native), None)

    def check_config(self, config: PretrainedConfig) -> None:
        """Raises an UnsupportedArchitectureError for settings of a model of the family that do not convert."""
        if (reason := self.base.unsupported(config)) is not None:
            raise UnsupportedArchitectureError(f"This {config.model_type} model cannot be converted: {reason}.")

    def attention_layers(self, model: PreTrainedModel) -> dict[str, nn.Module]:
        """A native model's attention layers by module name, in the order of ranks.

        A layer that the model applies several times (ALBERT) is listed once.
        """
        classes = self.base.attention_classes
        return {name: layer for name, layer in model.named_modules() if type(layer) in classes}

    def names(self, layer: nn.Module) -> dict[str, str]:
        """A native attention layer's names of ``query``, ``key``, ``value`` and the other modules that are kept."""
        return self.base.attention_classes[type(layer)].native_names

    def roles(self, layer: nn.Module) -> dict[str, list[str]]:
        """What each part of a native attention layer is called in a collaborative one: several names if it is fused."""
        attention = self.base.attention_classes[type(layer)]
        return {native: attention.roles_of(native) for native in attention.native_names.values()}

    def num_heads(self, layer: nn.Module) -> int:
        """H of a native attention layer."""
        return self.base.attention_classes[type(layer)].heads_of(layer)

    def projection(self, layer: nn.Module, role: str) -> nn.Linear:
        """A native attention layer's ``query``, ``key`` or ``value`` projection; of a fused one a view of its rows."""
        return self.base.attention_classes[type(layer)].native_projection(layer, role)

    def value_rows(self, layer: nn.Module) -> tuple[int, int]:
        """Which part of how many equal ones the values are in the output of the native module that computes them."""
        attention = self.base.attention_classes[type(layer)]
        roles = attention.roles_of(attention.native_names["value"])
        return roles.index("value"), len(roles)

    def scores_input(self, layer: nn.Module, given: dict[str, Any]) -> tuple[Any, Tensor | None]:
        """The mask and the position bias that a native attention layer was called with."""
        return self.base.attention_classes[type(layer)].scores_input(layer, given)

    def positions_input(self, layer: nn.Module, given: dict[str, Any]) -> Any:
        """What a native attention layer was called with to tell positions apart in queries and keys, if anything."""
        return self.base.attention_classes[type(layer)].positions_input(layer, given)

    def weights_index(self, layer: nn.Module) -> int:
        """Index of the attention weights in what a native attention layer returns."""
        return self.base.attention_classes[type(layer)].native_weights

    def kind(self, layer: nn.Module) -> LayerKind:
        """What a native attention layer attends to, and from where; see `LayerKind`."""
        return self.base.attention_classes[type(layer)].kind_of(layer)

    def keys_input(self, layer: nn.Module, given: dict[str, Any]) -> Tensor:
        """The states that a native attention layer computes its keys from; arguments as for `scores_input`."""
        return self.base.attention_classes[type(layer)].keys_input(layer, given)

    def is_rotary(self, layer: nn.Module) -> bool:
        """Whether a native attention layer rotates its queries and keys by their positions."""
        return issubclass(self.base.attention_classes[type(layer)], CollaborativeRotaryAttention)

    def position_terms(self, layer: nn.Module) -> PositionTerms | None:
        """The terms of disentangled positions that a native attention layer adds to its scores, if any."""
        attention = self.base.attention_classes[type(layer)]
        return attention.terms_of(layer) if issubclass(attention, CollaborativeDisentangledAttention) else None

    def output_projection(self, model: PreTrainedModel, name: str) -> nn.Module:
        """The output projection W_O of a native attention layer, inside the layer or in the block around it."""
        return model.get_submodule(self.output_name(model, name))

    def output_name(self, model: PreTrainedModel, name: str) -> str:
        """The module name of a native attention layer's output projection."""
        layer = model.get_submodule(name)
        names = self.names(layer)
        if "dense" in names:
            return f"{name}.{names['dense']}"
        return self.base.attention_classes[type(layer)].output_name(name)


def arguments_of(module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments that a module was called with, by name, as a forward hook is given them."""
    bound = inspect.signature(type(module).forward).bind(module, *args, **kwargs).arguments
    return bound | bound.get("kwargs", {})


def collaborative_layers(model: PreTrainedModel) -> dict[str, CollaborativeAttention]:
    """A converted model's attention layers by module name."""
    return {name: layer for name, layer in model.named_modules() if isinstance(layer, CollaborativeAttention)}


class Families(Mapping[str, Family]):
    """All families, by the `model_type` of their native models. The file of one is imported when it is asked for."""

    def __init__(self) -> None:
        files = {info.name for info in pkgutil.iter_modules(modeling.__path__)}
        self._files = {kind: file for kind in sorted(CONFIG_MAPPING_NAMES) if (file := _file_of(kind)) in files}

    def __getitem__(self, model_type: str) -> Family:
        return _read(self._files[model_type])

    def __contains__(self, model_type: object) -> bool:
        return model_type in self._files

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


@cache
def families() -> Families:
    """All families, by the `model_type` of their native models."""
    return Families()


def _file_of(model_type: str) -> str:
    """The name of a family's file in `collab.modeling`; a tower's lacks the end of its type."""
    return f"collab_{model_type.replace('-', '_').removesuffix('_model')}"


@cache
def _read(file: str) -> Family:
    module = importlib.import_module(f"{modeling.__name__}.{file}")
    base, *heads = family_models(module)
    assert issubclass(base, CollaborativeBase)
    return Family(module, base, tuple(heads))


def native_type(model_type: str) -> str:
    """The `model_type` of the native models of a family, from that of the native or of the converted ones."""
    return model_type.removeprefix(_PREFIX)


def native_forwards() -> dict[type[nn.Module], Callable[..., Any]]:
    """By class of native attention layer, what to use for its forward; see `CollaborativeAttention.native_forward`.

    Native layers of families that are missing here were not imported, so that no model can have any.
    """
    imported = [kind for kind in families() if f"transformers.models.{model_type_to_module_name(kind)}" in sys.modules]
    classes = [pair for kind in imported for pair in families()[kind].base.attention_classes.items()]
    return {native: attention.native_forward for native, attention in classes if attention.native_forward is not None}


class _Configs(UserDict[str, type[PretrainedConfig] | None]):
    """Config classes that are not of transformers, where it looks for them; None for collab's until they are read."""

    def __getitem__(self, model_type: str) -> type[PretrainedConfig]:
        config_class = self.data[model_type]
        if config_class is None:
            config_class = self.data[model_type] = families()[native_type(model_type)].config_class
        return config_class


def _register() -> None:
    """Has transformers find the configs of converted models. Those register their models when they are read."""
    configs = _Configs(CONFIG_MAPPING._extra_content)
    configs.update(dict.fromkeys(f"{_PREFIX}{model_type}" for model_type in families()))
    CONFIG_MAPPING._extra_content = configs  # type: ignore[assignment]


def require_family(config: PretrainedConfig) -> Family:
    """The family of a native model's config.

    Raises:
        AlreadyConvertedError: if it is the config of a collaborative model.
        UnsupportedArchitectureError: if collab does not convert its attention.
    """
    refuse_unsupported(config.model_type)
    family = families()[config.model_type]
    expected = family.base.position_type
    position = getattr(config, "position_embedding_type", None) or expected
    if position != expected:
        because = f": {RELATIVE.because}" if position.startswith("relative") else ""
        raise UnsupportedArchitectureError(
            f"position_embedding_type={position!r} is not supported{because}. Only {expected} positions convert."
        )
    family.check_config(config)
    return family


def refuse_unsupported(model_type: str) -> None:
    """Raises an error for a `model_type` without a family.

    Raises:
        AlreadyConvertedError: if it is that of a collaborative model.
        UnsupportedArchitectureError: otherwise, with the reason if it is known.
    """
    supported = families()
    if model_type in supported:
        return
    if native_type(model_type) in supported:
        raise AlreadyConvertedError(
            f"This model is collaborative already (model_type {model_type}). Convert the original model instead; its "
            "name is in the converted model's README.md as base_model."
        )
    refusal = refusal_of(model_type)
    raise UnsupportedArchitectureError(
        f"Models of type {model_type!r} cannot be converted: {refusal.because}. {refusal.instead} Supported: "
        f"{', '.join(supported)}."
    )


_register()
