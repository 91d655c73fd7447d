"""What is not converted, and that it is said why: from the config alone, for every encoder of transformers."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import PretrainedConfig, RemBertConfig
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

import collab
from collab.conversion.convert import require_convertible
from collab.errors import UnsupportedArchitectureError
from collab.modeling.collab_family import auto_loaded
from collab.models.families import families, require_family
from collab.models.refusals import REFUSALS, UNCLEAR, refusal_of

ENCODERS = (
    "MASKED_LM",
    "TEXT_ENCODING",
    "QUESTION_ANSWERING",
    "TABLE_QUESTION_ANSWERING",
    "DOCUMENT_QUESTION_ANSWERING",
    "IMAGE_CLASSIFICATION",
    "ZERO_SHOT_IMAGE_CLASSIFICATION",
    "VIDEO_CLASSIFICATION",
    "OBJECT_DETECTION",
    "AUDIO_CLASSIFICATION",
    "AUDIO_FRAME_CLASSIFICATION",
    "AUDIO_XVECTOR",
    "CTC",
)
"""Tasks of encoders, by the names of transformers' tables."""


def encoders() -> dict[str, list[str]]:
    """The names of the model classes that transformers' Auto classes load for these tasks, by `model_type`."""
    classes: dict[str, list[str]] = {}
    for task in ENCODERS:
        for model_type, names in getattr(modeling_auto, f"MODEL_FOR_{task}_MAPPING_NAMES").items():
            known = classes.setdefault(model_type, [])
            known += [name for name in ([names] if isinstance(names, str) else names) if name not in known]
    return dict(sorted(classes.items()))


def test_every_encoder_of_transformers_is_converted_or_refused_with_a_reason() -> None:
    unknown = {kind for kind in set(encoders()) - set(families()) if refusal_of(kind) is UNCLEAR}
    assert not unknown, f"new in transformers? add a family, or a reason to models/refusals.py: {sorted(unknown)}"


def test_what_is_refused_is_not_converted_and_exists() -> None:
    assert not set(REFUSALS) & set(families())
    elsewhere = {"jina_bert", "neobert"}  # from the Hub, with code of their own
    assert set(REFUSALS) - set(CONFIG_MAPPING_NAMES) <= elsewhere


@pytest.mark.parametrize("model_type", sorted({*REFUSALS, *encoders()} - {*families()}))
def test_a_refusal_names_architecture_reason_and_what_to_do(
    model_type: str, record_property: Callable[[str, object], None]
) -> None:
    config = PretrainedConfig()
    config.model_type = model_type
    with pytest.raises(UnsupportedArchitectureError) as refused:
        require_family(config)
    message, refusal = str(refused.value), refusal_of(model_type)
    record_property("message", message)
    assert message.startswith(
        f"Models of type {model_type!r} cannot be converted: {refusal.because}. {refusal.instead}"
    )


def test_no_weights_are_needed(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps({"model_type": "roformer"}))
    with pytest.raises(UnsupportedArchitectureError, match="rotary position"):
        collab.checkpoints.convert(str(tmp_path / "model"), tmp_path / "out", collab.ConversionConfig(rank=8))


def test_decoders_and_detectors() -> None:
    assert "decoder" in refusal_of("gpt_neo").because
    assert "decoder" in refusal_of("blenderbot").because
    assert "detects objects" in refusal_of("detr").because


def test_cross_attention_by_the_class_of_self_attention() -> None:
    with pytest.raises(UnsupportedArchitectureError, match="Convert the encoder without cross-attention"):
        require_family(RemBertConfig(is_decoder=True, add_cross_attention=True))


def test_classes_of_a_family_that_do_not_convert_are_refused(
    record_property: Callable[[str, object], None],
) -> None:
    """Whatever an Auto class loads for the family's config."""
    for family in families().values():
        config_class = family.base.native_class().config_class
        for native in dict.fromkeys(auto_loaded(config_class)):
            if family.collaborative_class(native) is None:
                with torch.device("meta"), warnings.catch_warnings(action="ignore"):
                    model = native(config_class())
                with pytest.raises(UnsupportedArchitectureError, match=native.__name__) as refused:
                    require_convertible(model)
                record_property("message", str(refused.value))
