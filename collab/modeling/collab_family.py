"""Derives what the files of families would repeat: the config class, and the classes of models with a head.

This file is copied into every exported model; it imports only torch, transformers and its own folder.
"""

import sys
from collections.abc import Callable, Container, Sequence
from typing import Any, TypeVar

from huggingface_hub.dataclasses import strict
from transformers import AutoModel, PreTrainedConfig, PreTrainedModel
from transformers.modeling_layers import (
    GenericForQuestionAnswering,
    GenericForSequenceClassification,
    GenericForTokenClassification,
)
from transformers.models.auto import modeling_auto

from .collab_config import CollaborativeConfig
from .collab_model import CollaborativeBase, CollaborativeHead, CollaborativeMixin, CollaborativePart

_BUILT_BY_AUTO_MODEL = (GenericForQuestionAnswering, GenericForSequenceClassification, GenericForTokenClassification)
"""Native heads that have AutoModel build their main model."""

Base = TypeVar("Base", bound=type[CollaborativeBase])


def collaborative_family(
    *others: type[PreTrainedModel],
    inner: Sequence[type[PreTrainedModel]] = (),
    encoders: Sequence[type[PreTrainedModel]] = (),
    without: Container[str] = (),
) -> Callable[[Base], Base]:
    """Completes a family from its main model: a decorator that adds the other classes to the module.

    For the config and for every native model class it defines a class whose name is ``Collab`` and the native one's,
    as written out for BERT here::

        @strict
        class CollabBertConfig(CollaborativeConfig, BertConfig):
            model_type = "collab_bert"

        class CollabBertForMaskedLM(CollaborativeHead, BertForMaskedLM):
            base_class = CollabBertModel

    The native model classes are those that transformers' Auto classes load for the native config.

    Args:
        *others: further native model classes, which no Auto class loads.
        inner: native model classes that exist only inside the others, such as an encoder.
        encoders: native model classes of an encoder alone, in a family of encoders with decoders. They may be inside of
            others, and AutoModel loads them where the `architectures` of the config name them.
        without: names of native model classes that are not converted, such as a decoder alone.
    """

    def complete(base: Base) -> Base:
        def add(derived: type) -> None:
            setattr(sys.modules[base.__module__], derived.__name__, derived)

        def version(native: type[PreTrainedModel], kind: type[CollaborativeMixin]) -> None:
            name = f"Collab{native.__name__}"
            values = {"base_class": base, "__module__": base.__module__, "__doc__": f"Collaborative {native.__name__}."}
            add(type(name, (kind, native), values))

        native_config: Any = base.native_class().config_class
        base.config_class = collaborative_config(native_config, base.__module__)
        add(base.config_class)
        for native in inner:
            version(native, CollaborativePart)
        for native in dict.fromkeys((*encoders, *others, *auto_loaded(native_config))):
            if native is not base.native_class() and native.__name__ not in without:
                version(native, CollaborativeHead)
        base.encoders = tuple(base.versions[native] for native in encoders)
        if any(issubclass(native, _BUILT_BY_AUTO_MODEL) for native in base.versions):
            AutoModel.register(base.config_class, base, exist_ok=True)
        return base

    return complete


def collaborative_config(native: Any, module: str) -> type[PreTrainedConfig]:
    """The collaborative version of a native config class, as a class of the module of that name."""
    values = {"model_type": f"collab_{native.model_type}", "__module__": module, "__doc__": native.__doc__}
    return strict(type(f"Collab{native.__name__}", (CollaborativeConfig, native), values))


def auto_loaded(config: type[PreTrainedConfig]) -> list[type[PreTrainedModel]]:
    """The model classes that transformers' Auto classes load for a config class, and that are of that config."""
    loaded: list[type[PreTrainedModel]] = []
    for name, auto_class in vars(modeling_auto).items():
        mapping = getattr(auto_class, "_model_mapping", None)
        if name.startswith("AutoModel") and mapping is not None and config in mapping:
            native = mapping[config]
            loaded += native if isinstance(native, tuple | list) else [native]
    # Not those around any model, whose config holds that of the model.
    return [native for native in loaded if native.config_class is not None and issubclass(config, native.config_class)]
