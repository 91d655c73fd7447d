"""A model's inputs: of what kind they are, how long they may be, and random batches."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import AutoModelForMaskedLM, AutoModelForMultipleChoice, AutoModelForPreTraining, PreTrainedModel

from ..errors import ConfigurationError, UnsupportedArchitectureError, first_line
from .layers import part_of

InputKind = Literal["text", "images", "audio", "videos"]
"""What a model reads; a model of text and images counts as one of text."""

KINDS: dict[str, InputKind] = {
    "input_ids": "text",
    "pixel_values": "images",
    "input_values": "audio",
    "input_features": "audio",
}


def input_kind(model: PreTrainedModel) -> InputKind:
    """The kind of a model's inputs.

    Raises:
        UnsupportedArchitectureError: if it is something else.
    """
    if model.main_input_name not in KINDS:
        raise UnsupportedArchitectureError(f"Models that read {model.main_input_name} are not supported.")
    kind = KINDS[model.main_input_name]
    return "videos" if kind == "images" and hasattr(model.config, "num_frames") else kind


def takes_waveforms(model: PreTrainedModel) -> bool:
    """Whether a model reads recordings of any length, sample by sample, rather than spectrograms of one size."""
    return model.main_input_name == "input_values" and not hasattr(model.config, "num_mel_bins")


def has_length(model: PreTrainedModel) -> bool:
    """Whether rows for a model have a length; those of others, such as images, are all of one size."""
    return input_kind(model) == "text" or takes_waveforms(model)


def encoder_of(model: PreTrainedModel) -> PreTrainedModel:
    """The encoder of a model whose encoder and decoder have configs of their own; other models themselves."""
    return model.encoder if _is_composite(model) else model  # type: ignore[return-value]


def decoder_of(model: PreTrainedModel) -> PreTrainedModel:
    """The decoder of a model whose encoder and decoder have configs of their own; other models themselves."""
    return model.decoder if _is_composite(model) else model  # type: ignore[return-value]


def _is_composite(model: PreTrainedModel) -> bool:
    return bool(part_of(model.config, "encoder"))


def longest_input(model: PreTrainedModel) -> int:
    """The largest number of tokens that a model accepts."""
    return _positions(encoder_of(model))


def position_padding(model: PreTrainedModel) -> int | None:
    """The padding id from which RoBERTa and its derivatives number positions; None for models that begin at 0."""
    embeddings = getattr(model.base_model, "embeddings", None)
    return getattr(getattr(embeddings, "position_embeddings", None), "padding_idx", None)


def _positions(model: PreTrainedModel) -> int:
    positions = getattr(model.config, "max_position_embeddings", None) or 512
    padding = position_padding(model)
    return max(1, positions if padding is None else positions - padding - 1)


def lengths_within(model: PreTrainedModel, lengths: Iterable[int]) -> list[int]:
    """Numbers of tokens in ascending order, those above what a model accepts replaced by it."""
    limit = longest_input(model)
    return sorted({min(length, limit) for length in lengths})


def longest_text(model: PreTrainedModel, max_length: int | None) -> int:
    """Tokens that texts are truncated to: `max_length`, or what the model accepts if that is less or None is given."""
    limit = longest_input(model)
    return min(max_length or limit, limit)


def is_loaded_by(model: PreTrainedModel, auto: Any) -> bool:
    """Whether a model, sharded or not, is of the class that an Auto class loads for its config."""
    natives = auto._model_mapping.get(type(model.config), None)
    return natives is not None and isinstance(model, natives)


def has_choices(model: PreTrainedModel) -> bool:
    """Whether a model's inputs are several choices for each example, (B, choices, T)."""
    return is_loaded_by(model, AutoModelForMultipleChoice)


def predicts_masked(model: PreTrainedModel) -> bool:
    """Whether a model predicts the tokens that are masked in its input, alone or beside something else of a row."""
    return (
        type(model.config) in AutoModelForMaskedLM._model_mapping
        and (is_loaded_by(model, AutoModelForMaskedLM) or is_loaded_by(model, AutoModelForPreTraining))
        and model.get_output_embeddings() is not None  # of ELECTRA the second one tells which tokens were replaced
        and not has_decoder(model)
    )


def has_decoder(model: PreTrainedModel | type[PreTrainedModel]) -> bool:
    """Whether a model, or a model class, is an encoder with a decoder, which takes tokens of its own."""
    return "decoder_input_ids" in inspect.signature(model.forward).parameters


def decoder_inputs(model: PreTrainedModel, labels: Tensor) -> Tensor:
    """Inputs of a decoder that answers with these labels, (B, T): the labels shifted by one, after the first token.

    Raises:
        ConfigurationError: if the model's config names no such token.
    """
    prepare = getattr(model, "prepare_decoder_input_ids_from_labels", None)
    if prepare is not None:
        try:
            return prepare(labels)
        except ValueError as error:
            raise ConfigurationError(f"The model's decoder cannot be run on targets: {first_line(error)}") from error
    start = model.config.decoder_start_token_id
    if start is None:
        raise ConfigurationError(
            "The model's config has no decoder_start_token_id, so its decoder cannot be run on targets. Set it."
        )
    return torch.cat([torch.full_like(labels[:, :1], start), labels[:, :-1]], dim=1)


def with_targets(model: PreTrainedModel, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A batch of an encoder-decoder with what its decoder reads and the mask of that, made of ``labels`` if need be.

    A batch of any other model is as it was. Where no mask is given, the padding at the ends of the targets, or their
    labels of -100, are masked.

    Raises:
        ConfigurationError: as `decoder_inputs`.
    """
    completed = dict(batch)
    if not has_decoder(model):
        return completed
    labels = completed.pop("labels", None)
    padding = getattr(decoder_of(model).config, "pad_token_id", None)
    if "decoder_input_ids" not in completed and labels is not None:
        completed["decoder_input_ids"] = decoder_inputs(model, labels)
        completed.setdefault("decoder_attention_mask", _until_padding(labels, padding))
    elif "decoder_input_ids" in completed and "decoder_attention_mask" not in completed:
        completed["decoder_attention_mask"] = _until_padding(completed["decoder_input_ids"], padding)
    return completed


def _until_padding(ids: Tensor, padding: int | None) -> Tensor:
    """1 for the first token of every row, (B, T), and until the last one that is not padding."""
    there = (ids >= 0) & (ids != (-1 if padding is None else padding))
    there[:, 0] = True
    return there.flip(1).cummax(1).values.flip(1).long()


def decoder_vocabulary(model: PreTrainedModel) -> int:
    """The number of tokens that the decoder of an encoder-decoder knows."""
    config = decoder_of(model).config
    return getattr(config, "decoder_vocab_size", None) or config.vocab_size


_FORCED = ("forced_bos_token_id", "forced_eos_token_id", "decoder_start_token_id")


def check_forced(model: PreTrainedModel) -> None:
    """Raises a ConfigurationError if a model's generation config forces tokens that its vocabulary lacks."""
    settings, known = getattr(model, "generation_config", None), decoder_vocabulary(model)
    for name in _FORCED:
        value = getattr(settings, name, None)
        for token in value if isinstance(value, list) else [value]:
            if token is not None and not 0 <= token < known:
                raise ConfigurationError(
                    f"The generation config forces the token {token} ({name}), but the vocabulary ends at {known - 1}. "
                    "Name a token that is there, or none."
                )


def longest_target(model: PreTrainedModel) -> int:
    """The largest number of tokens that the decoder of an encoder-decoder accepts."""
    return getattr(model.config, "max_target_positions", None) or _positions(decoder_of(model))


def probe_inputs(model: PreTrainedModel, seed: int = 0) -> dict[str, Tensor]:
    """A small random batch that a model accepts: two sequences, the second one padded, or two images or recordings.

    Args:
        model: a model of a supported family, with any head.
        seed: random seed.
    """
    inputs = random_inputs(model, 2, min(8, longest_input(model)), states=5, seed=seed)
    for name in ("attention_mask", "decoder_attention_mask"):
        if name in inputs:
            mask = inputs[name]
            mask.flatten(0, -2)[1, mask.shape[-1] // 2 :] = 0
    return inputs


def random_sources(model: PreTrainedModel, rows: int, length: int) -> dict[str, Tensor]:
    """`random_inputs` for a model that writes: what its encoder reads, or a decoder's prompt."""
    inputs = random_inputs(model, rows, length)
    return {name: value for name, value in inputs.items() if not name.startswith("decoder_")}


def random_inputs(
    model: PreTrainedModel,
    rows: int,
    length: int,
    *,
    vocabulary: int | None = None,
    states: int | None = None,
    seed: int = 0,
) -> dict[str, Tensor]:
    """A random batch that a model accepts: sequences of equal length without padding, images or recordings.

    Args:
        model: a model of a supported family, with any head.
        rows: B.
        length: T; images, and recordings of a fixed length, have the size that the model's config says.
        vocabulary: token ids are below this number; None for the model's whole vocabulary.
        states: S, the number of encoder states for cross-attention, or of a decoder's tokens; None for T.
        seed: random seed.
    """
    generator = torch.Generator().manual_seed(seed)
    config = encoder_of(model).config
    if input_kind(model) in ("images", "videos"):
        images = random_images(encoder_of(model), rows, generator)
        return on_device(images | _random_targets(model, rows, states or length, generator), model)
    if input_kind(model) == "audio":
        recordings = random_audio(model, rows, length, generator)
        return on_device(recordings | _random_targets(model, rows, states or length, generator), model)
    config = getattr(config, "text_config", config)
    inputs = {
        "input_ids": torch.randint(vocabulary or config.vocab_size, (rows, length), generator=generator),
        "attention_mask": torch.ones(rows, length, dtype=torch.long),
    }
    if has_choices(model):
        inputs = {name: value.unsqueeze(1) for name, value in inputs.items()}  # a single choice for each example
    if getattr(config, "add_cross_attention", False):
        shape = (rows, states or length, config.hidden_size)
        inputs["encoder_hidden_states"] = torch.randn(shape, generator=generator)
    if hasattr(model.config, "vision_config"):
        inputs |= random_images(model, rows, generator)
    inputs |= _random_targets(model, rows, states or length, generator)
    return on_device(_ended(model, inputs), model)


def _ended(model: PreTrainedModel, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Random rows of which a classifier on an encoder–decoder, which reads the state of their end, finds just one."""
    end = getattr(model.config, "eos_token_id", None)
    if not has_decoder(model) or model.can_generate() or not isinstance(end, int):
        return inputs
    ids = inputs["input_ids"].where(inputs["input_ids"] != end, (end + 1) % model.config.vocab_size)
    ids[..., -1] = end
    return inputs | {"input_ids": ids}


def _random_targets(model: PreTrainedModel, rows: int, length: int, generator: torch.Generator) -> dict[str, Tensor]:
    """Random tokens for the decoder of an encoder-decoder; empty for other models."""
    if not has_decoder(model):
        return {}
    length = min(length, longest_target(model))
    return {
        "decoder_input_ids": torch.randint(decoder_vocabulary(model), (rows, length), generator=generator),
        "decoder_attention_mask": torch.ones(rows, length, dtype=torch.long),
    }


def on_device(batch: Mapping[str, Tensor], model: PreTrainedModel) -> dict[str, Tensor]:
    """Moves a batch to a model's device, and the numbers that the model computes with to its dtype; not labels."""
    return {
        name: value.to(model.device, model.dtype if value.is_floating_point() and name != "labels" else None)
        for name, value in batch.items()
    }


def random_images(model: PreTrainedModel, rows: int, generator: torch.Generator) -> dict[str, Tensor]:
    """Random images, or videos, of the size of a model's config.

    Returns:
        ``pixel_values``, (B, C, height, width), of videos (B, frames, C, height, width). Of a model that takes images
        cut into patches (B, patches, pixels), with ``pixel_attention_mask`` and ``spatial_shapes``; the second image
        has fewer patches.
    """
    config = getattr(model.config, "vision_config", model.config)
    if hasattr(config, "image_size"):
        size = config.image_size
        height, width = size if isinstance(size, list | tuple) else (size, size)
        frames = [config.num_frames] if hasattr(config, "num_frames") else []
        shape = (rows, *frames, getattr(config, "num_channels", 3), height, width)
        pixels = torch.randn(shape, generator=generator)
        return {"pixel_values": pixels.to(model.dtype)}
    side = int(config.num_patches**0.5)
    pixels = torch.randn(rows, config.num_patches, config.num_channels * config.patch_size**2, generator=generator)
    shapes = torch.full((rows, 2), side)
    shapes[1:2, 0] = max(1, side - 1)
    seen = torch.arange(config.num_patches) < shapes.prod(dim=1, keepdim=True)  # (B, patches)
    return {"pixel_values": pixels.to(model.dtype), "pixel_attention_mask": seen.long(), "spatial_shapes": shapes}


def random_audio(model: PreTrainedModel, rows: int, length: int, generator: torch.Generator) -> dict[str, Tensor]:
    """Random recordings: spectrograms of the size of a model's config, or waveforms of `length` frames.

    Returns:
        ``input_features``, (B, mel bins, frames), or ``input_values``, (B, samples), or (B, frames, mel bins).
    """
    config = model.config
    if model.main_input_name == "input_features":
        shape: tuple[int, ...] = (rows, config.num_mel_bins, 2 * config.max_source_positions)
    elif not takes_waveforms(model):
        shape = (rows, config.max_length, config.num_mel_bins)
    else:
        shape = (rows, least_samples(model, length))
    return {model.main_input_name: torch.randn(*shape, generator=generator).to(model.dtype)}


def least_samples(model: PreTrainedModel, frames: int = 1) -> int:
    """The fewest samples of a waveform of which a model makes so many frames."""
    samples = frames * getattr(model.config, "squeeze_factor", 1)
    for kernel, stride in zip(reversed(model.config.conv_kernel), reversed(model.config.conv_stride), strict=True):
        samples = (samples - 1) * stride + kernel
    return samples
