"""Models of an encoder and a decoder, each of a family of its own; and the families whose decoders they may have.

This file is copied into every exported model of this kind; it imports only its own folder.
"""

from typing import Any, ClassVar

from .collab_bert import CollabBertModel
from .collab_bert_generation import CollabBertGenerationEncoder
from .collab_camembert import CollabCamembertModel
from .collab_data2vec_text import CollabData2VecTextModel
from .collab_electra import CollabElectraModel
from .collab_ernie import CollabErnieModel
from .collab_model import CollaborativeBase
from .collab_roberta import CollabRobertaModel
from .collab_roberta_prelayernorm import CollabRobertaPreLayerNormModel
from .collab_xlm_roberta import CollabXLMRobertaModel
from .collab_xlm_roberta_xl import CollabXLMRobertaXLModel

DECODERS: tuple[type[CollaborativeBase], ...] = (
    CollabBertModel,
    CollabBertGenerationEncoder,
    CollabCamembertModel,
    CollabData2VecTextModel,
    CollabElectraModel,
    CollabErnieModel,
    CollabRobertaModel,
    CollabRobertaPreLayerNormModel,
    CollabXLMRobertaModel,
    CollabXLMRobertaXLModel,
)
"""Families with attention to another sequence in a class of its own."""


class CollaborativeComposite(CollaborativeBase):
    """Mixin for the native class of such models. Their configs hold those of the parts, which stay native.

    Class attributes:
        sides: the main models of the families that the ``encoder`` and the ``decoder`` may be of.
    """

    sides: ClassVar[dict[str, tuple[type[CollaborativeBase], ...]]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        parts = dict.fromkeys(part for families in cls.sides.values() for part in families)
        cls.attention_classes = {native: layer for part in parts for native, layer in part.attention_classes.items()}
        super().__init_subclass__(**kwargs)
        for part in parts:
            cls.versions.update(part.versions)

    @classmethod
    def unsupported(cls, config: Any) -> str | None:
        for side, families in cls.sides.items():
            part = getattr(config, side)
            by_type = {family.native_class().config_class.model_type: family for family in families}  # type: ignore[union-attr]
            family = by_type.get(part.model_type)
            if family is None:
                return f"its {side} is of type {part.model_type!r}. Those that convert are {', '.join(by_type)}"
            position = getattr(part, "position_embedding_type", None) or family.position_type
            if position != family.position_type:
                return f"its {side} has {position} positions. Only {family.position_type} positions convert"
            if (reason := family.unsupported(part)) is not None:
                return f"of its {side}, {reason}"
        return None
