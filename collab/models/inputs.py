"""A model's inputs: how long they may be, and random batches."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from transformers import AutoModelForMultipleChoice, PreTrainedModel


def longest_input(model: PreTrainedModel) -> int:
    """The largest number of tokens that a model accepts."""
    positions = getattr(model.config, "max_position_embeddings", None) or 512
    embeddings = getattr(model.base_model, "embeddings", None)
    padding = getattr(getattr(embeddings, "position_embeddings", None), "padding_idx", None)
    # RoBERTa and its derivatives number positions from the padding id on.
    return max(1, positions if padding is None else positions - padding - 1)


def longest_text(model: PreTrainedModel, max_length: int | None) -> int:
    """Tokens that texts are truncated to: `max_length`, or what the model accepts if that is less or None is given."""
    limit = longest_input(model)
    return min(max_length or limit, limit)


def has_choices(model: PreTrainedModel) -> bool:
    """Whether a model's inputs are several choices for each example, (B, choices, T)."""
    return type(model) is AutoModelForMultipleChoice._model_mapping.get(type(model.config), None)


def probe_inputs(model: PreTrainedModel, seed: int = 0) -> dict[str, Tensor]:
    """A small random batch that a model accepts: two sequences, the second one padded, or two images.

    Args:
        model: a model of a supported family, with any head.
        seed: random seed.
    """
    inputs = random_inputs(model, 2, min(8, longest_input(model)), states=5, seed=seed)
    if "attention_mask" in inputs:
        mask = inputs["attention_mask"]
        mask.flatten(0, -2)[1, mask.shape[-1] // 2 :] = 0
    return inputs


def random_inputs(
    model: PreTrainedModel,
    rows: int,
    length: int,
    *,
    vocabulary: int | None = None,
    states: int | None = None,
    seed: int = 0,
) -> dict[str, Tensor]:
    """A random batch that a model accepts: sequences of equal length without padding, or images.

    Args:
        model: a model of a supported family, with any head.
        rows: B.
        length: T; images have the size of the model's config.
        vocabulary: token ids are below this number; None for the model's whole vocabulary.
        states: S, the number of encoder states for cross-attention; None for T.
        seed: random seed.
    """
    generator = torch.Generator().manual_seed(seed)
    config = model.config
    if model.main_input_name == "pixel_values":
        return {"pixel_values": random_images(model, rows, generator).to(model.device, model.dtype)}
    inputs = {
        "input_ids": torch.randint(vocabulary or config.vocab_size, (rows, length), generator=generator),
        "attention_mask": torch.ones(rows, length, dtype=torch.long),
    }
    if has_choices(model):
        inputs = {name: value.unsqueeze(1) for name, value in inputs.items()}  # a single choice for each example
    if getattr(config, "add_cross_attention", False):
        other = torch.randn(rows, states or length, config.hidden_size, generator=generator)
        inputs["encoder_hidden_states"] = other.to(model.dtype)
    return on_device(inputs, model.device)


def on_device(batch: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    """Moves a batch to a device."""
    return {name: value.to(device) for name, value in batch.items()}


def random_images(model: PreTrainedModel, rows: int, generator: torch.Generator) -> Tensor:
    """Random images of the size of a model's config, (B, C, height, width)."""
    size = model.config.image_size
    height, width = size if isinstance(size, list | tuple) else (size, size)
    return torch.randn(rows, model.config.num_channels, height, width, generator=generator)
