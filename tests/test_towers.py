"""Models of two towers, which convert tower by tower and take the converted towers in place of their own."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers
from tiny import BY_TYPE, full_rank, random_model, random_text, tensors
from transformers import AutoModel, PreTrainedModel

import collab
from collab.errors import UnsupportedArchitectureError

TOWERS = {
    "clip": transformers.CLIPModel,
    "siglip": transformers.SiglipModel,
    "siglip2": transformers.Siglip2Model,
}


def whole_model(model_type: str) -> PreTrainedModel:
    texts, images = (BY_TYPE[f"{model_type}_{kind}_model"].values for kind in ("text", "vision"))
    native = TOWERS[model_type]
    config = native.config_class(text_config={**texts, "projection_size": 32}, vision_config=images)
    return random_model(native, config)


def converted_towers(model: PreTrainedModel, folder: Path, rank: int | None = None) -> dict[str, PreTrainedModel]:
    """What docs/families.md tells users to do: each tower saved, converted as a folder, and loaded."""
    towers = {}
    for name in ("text_model", "vision_model"):
        tower = getattr(model, name)
        tower.save_pretrained(folder / name)
        collab.checkpoints.convert(
            str(folder / name),
            folder / f"{name}-collab",
            collab.ConversionConfig(rank=rank or full_rank(tower), compare=False),
            calibration=collab.CalibrationRequest("none"),
        )
        towers[name] = AutoModel.from_pretrained(folder / f"{name}-collab")
    return towers


def inputs_of(model: PreTrainedModel) -> dict[str, dict[str, torch.Tensor]]:
    vision = model.config.vision_config
    pixels = {"pixel_values": torch.randn(2, 3, 16, 16)}
    if vision.model_type == "siglip2_vision_model":
        pixels = {
            "pixel_values": torch.randn(2, 9, 3 * vision.patch_size**2),
            "pixel_attention_mask": torch.tensor([[1] * 9, [1] * 6 + [0] * 3]),
            "spatial_shapes": torch.tensor([[3, 3], [2, 3]]),
        }
    return {"text": random_text(3, 9), "image": pixels}


@pytest.mark.parametrize("model_type", TOWERS)
def test_converted_towers_take_the_place_of_the_original_ones(model_type: str, tmp_path: Path) -> None:
    model = whole_model(model_type)
    inputs = inputs_of(model)

    def answers() -> list[torch.Tensor]:
        with torch.no_grad():
            text = model.get_text_features(**inputs["text"]).pooler_output
            image = model.get_image_features(**inputs["image"]).pooler_output
            return [text, image, *tensors(model(**inputs["text"], **inputs["image"])).values()]

    expected = answers()
    for name, tower in converted_towers(model, tmp_path).items():
        setattr(model, name, tower)
    for kernel in ("eager", "sdpa"):
        model.set_attn_implementation(kernel)
        assert type(model.text_model).__name__.startswith("Collab")
        for actual, wanted in zip(answers(), expected, strict=True):
            torch.testing.assert_close(actual, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("model_type", TOWERS)
def test_the_whole_is_refused_with_what_to_do(model_type: str) -> None:
    with pytest.raises(UnsupportedArchitectureError, match=r"convert each tower.*docs/families\.md"):
        collab.convert(whole_model(model_type), collab.ConversionConfig(rank=8, compare=False))
