"""What is not converted, and that it is said why: from the config alone, for every encoder of transformers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from encoders import encoders
from transformers import PretrainedConfig, RemBertConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

import collab
from collab.errors import UnsupportedArchitectureError
from collab.models.families import families, require_family
from collab.models.refusals import REFUSALS, UNCLEAR, refusal_of


def test_every_encoder_of_transformers_is_converted_or_refused_with_a_reason() -> None:
    unknown = {kind for kind in set(encoders()) - set(families()) if refusal_of(kind) is UNCLEAR}
    assert not unknown, f"new in transformers? add a family, or a reason to models/refusals.py: {sorted(unknown)}"


def test_what_is_refused_is_not_converted_and_exists() -> None:
    assert not set(REFUSALS) & set(families())
    elsewhere = {"jina_bert", "neobert"}  # from the Hub, with code of their own
    assert set(REFUSALS) - set(CONFIG_MAPPING_NAMES) <= elsewhere


@pytest.mark.parametrize("model_type", sorted(REFUSALS))
def test_a_refusal_names_architecture_reason_and_what_to_do(model_type: str) -> None:
    config = PretrainedConfig()
    config.model_type = model_type
    with pytest.raises(UnsupportedArchitectureError) as refused:
        require_family(config)
    message, refusal = str(refused.value), REFUSALS[model_type]
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
