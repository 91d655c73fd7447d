"""Derives a family from names of native classes: its config class, its attention layers and its models with a head.

This file is copied into every exported model; it imports only torch, transformers and its own folder.
"""

import sys
from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.modeling_layers import (
    GenericForQuestionAnswering,
    GenericForSequenceClassification,
    GenericForTokenClassification,
)
from transformers.models.auto import modeling_auto

from .collab_attention import CollaborativeAttention, CollaborativeCrossAttention, CollaborativeSelfAttention
from .collab_config import CollaborativeConfig
from .collab_feed_forward import FeedForward
from .collab_model import (
    CollaborativeBase,
    CollaborativeHead,
    CollaborativeMixin,
    CollaborativePart,
    auto_classes,
    natively_loaded,
)

_BUILT_BY_AUTO_MODEL = (GenericForQuestionAnswering, GenericForSequenceClassification, GenericForTokenClassification)
"""Native heads that have AutoModel build their main model."""


class CollaborativeFamily(CollaborativeBase):
    """Mixin for the native main model of a family, which adds the other classes of the family to its module.

    For the config and for every native model class there is a class whose name is ``Collab`` and the native one's, as
    written out for BERT here::

        @strict
        class CollabBertConfig(CollaborativeConfig, BertConfig):
            model_type = "collab_bert"

        class CollabBertForMaskedLM(CollaborativeHead, BertForMaskedLM):
            base_class = CollabBertModel

    The native model classes are those that transformers' Auto classes load for the native config.

    Class attributes. Names are those of classes in the native model's file, with ``{}`` for the prefix:
        native_prefix: what names of the family's native classes begin with.
        native_attention: the collaborative layer for every native attention layer.
        native_feed_forward: where each native module that holds a feed-forward layer keeps it.
        native_inner: models that exist only inside the others, such as an encoder.
        native_encoders: models of an encoder alone, in a family of encoders with decoders. They may be inside of
            others, and AutoModel loads them where the `architectures` of the config name them.
        native_others: further models, which no Auto class loads.
        not_converted: models that are left out, such as a decoder alone. Not every family of a kind has all of them.
    """

    native_prefix: ClassVar[str] = ""
    native_attention: ClassVar[dict[str, type[CollaborativeAttention]]] = {}
    native_feed_forward: ClassVar[dict[str, FeedForward]] = {}
    native_inner: ClassVar[Sequence[str]] = ()
    native_encoders: ClassVar[Sequence[str]] = ()
    native_others: ClassVar[Sequence[str]] = ()
    not_converted: ClassVar[Sequence[str]] = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        # Not what several families have in common, nor a class derived from a main model.
        is_main = issubclass(cls, PreTrainedModel) and cls.native_class() in cls.__bases__
        if is_main:
            cls._find_layers()
        super().__init_subclass__(**kwargs)
        if is_main:
            cls._add(cls)  # as the class statement will
            cls.config_class = cls._add(_config_class(cls.native_class().config_class, cls.__module__))
            cls._add_models()
            cls._register()

    @classmethod
    def unsupported(cls, config: Any) -> str | None:
        crosses = any(attention.crosses for attention in cls.native_attention.values())
        if getattr(config, "add_cross_attention", False) and not crosses:
            return (
                "one class serves its attention to the sequence itself and to another, so its cross-attention is not "
                "supported. Convert the encoder without cross-attention"
            )
        return None

    @classmethod
    def _find_layers(cls) -> None:
        find = partial(native_class, cls.native_class(), cls.native_prefix)
        cls.attention_classes = {find(name): layer for name, layer in cls.native_attention.items()}
        cls.feed_forward_classes = {find(name): place for name, place in cls.native_feed_forward.items()}

    @classmethod
    def _add(cls, added: Any) -> Any:
        """Adds a class to the main model's module."""
        setattr(sys.modules[cls.__module__], added.__name__, added)
        return added

    @classmethod
    def _add_models(cls) -> None:
        main, prefix = cls.native_class(), cls.native_prefix
        find = partial(native_class, main, prefix)
        for native in map(find, cls.native_inner):
            cls._add_version(native, CollaborativePart)
        encoders = [find(name) for name in cls.native_encoders]
        without = [name.format(prefix) for name in cls.not_converted]
        for native in dict.fromkeys((*encoders, *map(find, cls.native_others), *auto_loaded(main.config_class))):
            if native is not main and native.__name__ not in without:
                cls._add_version(native, CollaborativeHead)
        cls.encoders = tuple(cls.versions[native] for native in encoders)

    @classmethod
    def _register(cls) -> None:
        """Has transformers' Auto classes load the models for the config.

        They prefer what is registered to the `auto_map` of an exported folder, which names the class of its model. So
        from a folder only what native heads need is registered.
        """
        loadable: dict[str, tuple[type[CollaborativeMixin], ...]] = {}
        if cls.__module__.startswith("collab."):
            loadable = auto_classes(sys.modules[cls.__module__])
        elif any(issubclass(native, _BUILT_BY_AUTO_MODEL) for native in cls.versions):
            loadable = {"AutoModel": (cls,)}
        for name, classes in loadable.items():
            # A tuple where there are several, as in transformers' own tables; the config's architectures chooses.
            mapping = getattr(modeling_auto, name)._model_mapping
            mapping.register(cls.config_class, classes if len(classes) > 1 else classes[0], exist_ok=True)

    @classmethod
    def _add_version(cls, native: type[PreTrainedModel], kind: type[CollaborativeMixin]) -> None:
        """Adds the collaborative version of a native model class."""
        values = {"base_class": cls, "__module__": cls.__module__, "__doc__": f"Collaborative {native.__name__}."}
        cls._add(type(f"Collab{native.__name__}", (kind, native), values))


class BertFamily(CollaborativeFamily):
    """BERT and those of its descendants that may be decoders: each kind of attention is a class of its own."""

    native_attention = {
        "{}SelfAttention": CollaborativeSelfAttention,
        "{}CrossAttention": CollaborativeCrossAttention,
    }
    native_feed_forward = {"{}Layer": FeedForward(method="feed_forward_chunk")}
    expands_masks = True


class BertEncoderFamily(BertFamily):
    """Descendants of BERT whose self-attention is all that converts."""

    native_attention = {"{}SelfAttention": CollaborativeSelfAttention}
    expands_masks = False


def native_class(main: type[PreTrainedModel], prefix: str, name: str) -> Any:
    """The class of a name, with ``{}`` for the prefix, in the file of a native main model."""
    return getattr(sys.modules[main.__module__], name.format(prefix))


def _config_class(native: Any, module: str) -> type[PreTrainedConfig]:
    """The collaborative version of a native config class, as a class of the module of that name."""
    values = {"model_type": f"collab_{native.model_type}", "__module__": module, "__doc__": native.__doc__}
    return strict(type(f"Collab{native.__name__}", (CollaborativeConfig, native), values))


def auto_loaded(config: Any) -> list[type[PreTrainedModel]]:
    """The model classes that transformers' Auto classes load for a config class, and that are of that config."""
    loaded = [native for natives in natively_loaded(config).values() for native in natives]
    # Not those around any model, whose config holds that of the model.
    return [native for native in loaded if native.config_class is not None and issubclass(config, native.config_class)]
