"""The model families that collab converts: one for each ``collab_*`` file in `collab.modeling` that defines models.

Importing this module registers the converted models with transformers.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

from torch import Tensor, nn
from transformers import AutoConfig, PretrainedConfig, PreTrainedModel
from transformers.models.auto import modeling_auto

from .. import modeling
from ..errors import AlreadyConvertedError, UnsupportedArchitectureError
from ..modeling.collab_attention import CollaborativeAttention, LayerKind
from ..modeling.collab_disentangled import CollaborativeDisentangledAttention, PositionTerms
from ..modeling.collab_model import CollaborativeBase, CollaborativeMixin, auto_classes, family_models
from ..modeling.collab_rotary import CollaborativeRotaryAttention
from .refusals import RELATIVE, refusal_of


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


@cache
def families() -> dict[str, Family]:
    """All families, by the `model_type` of their native models."""
    by_type = {}
    for info in pkgutil.iter_modules(modeling.__path__):
        module = importlib.import_module(f"{modeling.__name__}.{info.name}")
        models = family_models(module)
        if models and issubclass(models[0], CollaborativeBase):
            family = Family(module, models[0], models[1:])
            by_type[family.native_model_type] = family
    return dict(sorted(by_type.items()))


@cache
def native_forwards() -> dict[type[nn.Module], Callable[..., Any]]:
    """By class of native attention layer, what to use for its forward; see `CollaborativeAttention.native_forward`."""
    classes = [pair for family in families().values() for pair in family.base.attention_classes.items()]
    return {native: attention.native_forward for native, attention in classes if attention.native_forward is not None}


def register() -> None:
    """Registers the converted models with transformers' Auto classes; may be called repeatedly."""
    for family in families().values():
        AutoConfig.register(family.config_class.model_type, family.config_class, exist_ok=True)
        for name, classes in auto_classes(family.module).items():
            # A tuple where there are several, as in transformers' own tables; the config's architectures chooses.
            mapping = getattr(modeling_auto, name)._model_mapping
            mapping.register(family.config_class, classes if len(classes) > 1 else classes[0], exist_ok=True)


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
    if model_type in {family.config_class.model_type for family in supported.values()}:
        raise AlreadyConvertedError(
            f"This model is collaborative already (model_type {model_type}). Convert the original model instead; its "
            "name is in the converted model's README.md as base_model."
        )
    refusal = refusal_of(model_type)
    raise UnsupportedArchitectureError(
        f"Models of type {model_type!r} cannot be converted: {refusal.because}. {refusal.instead} Supported: "
        f"{', '.join(supported)}."
    )


register()
