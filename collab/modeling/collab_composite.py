"""Models of an encoder and a decoder, each of a family of its own; and the families whose decoders they may have.

This file is copied into every exported model of this kind; it imports only transformers and its own folder.
"""

from functools import partial
from typing import Any, ClassVar, NamedTuple

from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_MAPPING

from .collab_family import BertFamily, CollaborativeFamily, native_class
from .collab_model import CollaborativePart


class Part(NamedTuple):
    """A family that the encoder or the decoder may be of. Its file is not needed, only what others have in common.

    Attributes:
        kind: what it inherits.
        prefix: its `native_prefix`.
        inner: its `native_inner`.
    """

    kind: type[CollaborativeFamily]
    prefix: str
    inner: tuple[str, ...] = ()


DECODERS = {
    "bert": Part(BertFamily, "Bert"),
    "bert-generation": Part(BertFamily, "BertGeneration"),
    "camembert": Part(BertFamily, "Camembert"),
    "data2vec-text": Part(BertFamily, "Data2VecText"),
    "electra": Part(BertFamily, "Electra"),
    "ernie": Part(BertFamily, "Ernie"),
    "roberta": Part(BertFamily, "Roberta"),
    "roberta-prelayernorm": Part(BertFamily, "RobertaPreLayerNorm"),
    "xlm-roberta": Part(BertFamily, "XLMRoberta"),
    "xlm-roberta-xl": Part(BertFamily, "XLMRobertaXL"),
}
"""Families with attention to another sequence in a class of its own, by `model_type`."""


class CollaborativeComposite(CollaborativeFamily):
    """Mixin for the native class of such models. Their configs hold those of the parts, which stay native.

    Class attributes:
        sides: the families that the ``encoder`` and the ``decoder`` may be of, by `model_type`.
    """

    sides: ClassVar[dict[str, dict[str, Part]]] = {}

    @classmethod
    def _find_layers(cls) -> None:
        cls.attention_classes, cls.feed_forward_classes = {}, {}
        for model_type, part in cls._parts().items():
            find = partial(native_class, main_model(model_type), part.prefix)
            cls.attention_classes |= {find(name): layer for name, layer in part.kind.native_attention.items()}
            cls.feed_forward_classes |= {find(name): place for name, place in part.kind.native_feed_forward.items()}

    @classmethod
    def _add_models(cls) -> None:
        super()._add_models()
        for model_type, part in cls._parts().items():
            main = main_model(model_type)
            natives = [main, *(native_class(main, part.prefix, name) for name in part.inner)]
            if model_type in cls.sides["decoder"]:
                natives.append(MODEL_FOR_CAUSAL_LM_MAPPING[main.config_class])
            for native in natives:
                cls._add_version(native, CollaborativePart)

    @classmethod
    def _parts(cls) -> dict[str, Part]:
        return cls.sides["encoder"] | cls.sides["decoder"]

    @classmethod
    def unsupported(cls, config: Any) -> str | None:
        native: Any = cls.native_class()
        if not isinstance(config, native.config_class):  # that of a part, which was checked with the whole
            return None
        for side, families in cls.sides.items():
            part = getattr(config, side)
            if part.model_type not in families:
                return f"its {side} is of type {part.model_type!r}. Those that convert are {', '.join(families)}"
            kind = families[part.model_type].kind
            position = getattr(part, "position_embedding_type", None) or kind.position_type
            if position != kind.position_type:
                return f"its {side} has {position} positions. Only {kind.position_type} positions convert"
            if (reason := kind.unsupported(part)) is not None:
                return f"of its {side}, {reason}"
        return None


def main_model(model_type: str) -> Any:
    """The native main model class of a family."""
    return MODEL_MAPPING[CONFIG_MAPPING[model_type]]
