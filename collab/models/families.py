"""The model families that collab converts: one for each ``collab_*`` file in `collab.modeling` that defines models.

Importing this module registers the converted models with transformers.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections import UserDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from types import ModuleType

from transformers import PretrainedConfig, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING, CONFIG_MAPPING_NAMES

from .. import modeling
from ..errors import AlreadyConvertedError, UnsupportedArchitectureError
from ..modeling.collab_attention import CollaborativeAttention
from ..modeling.collab_model import CollaborativeBase, CollaborativeMixin, family_models
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


def family_of(model: PreTrainedModel) -> Family:
    """The family of a native or a converted model.

    Raises:
        UnsupportedArchitectureError: if it belongs to none.
    """
    kind = native_type(model.config.model_type)
    refuse_unsupported(kind)
    family = families()[kind]
    family.check_config(model.config)
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
            f"This model is collaborative already (model_type {model_type}). Take the original model instead: collab "
            "inspect names it."
        )
    refusal = refusal_of(model_type)
    raise UnsupportedArchitectureError(
        f"Models of type {model_type!r} cannot be converted: {refusal.because}. {refusal.instead} Supported: "
        f"{', '.join(supported)}."
    )


_register()
