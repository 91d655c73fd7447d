"""Inputs to trace a model with and to check its graph on."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from ..errors import ConfigurationError, UnsupportedArchitectureError
from ..models.families import collaborative_layers
from ..models.inputs import (
    encoder_of,
    has_choices,
    has_decoder,
    input_kind,
    longest_input,
    random_audio,
    random_images,
    takes_waveforms,
)

_LONGEST = 128
_IMAGE = ("batch",)
_TEXT = ("batch", "length")
_CHOICES = ("batch", "choices", "length")

Feed = dict[str, NDArray[Any]]
"""What a graph is given, by the names of its inputs."""


def writes(model: PreTrainedModel) -> bool:
    """Whether a model writes text, token by token, with a cache that grows."""
    return has_decoder(model) or model.can_generate() or bool(getattr(model.config, "is_decoder", False))


def check_exportable(model: PreTrainedModel) -> None:
    """Checks that a model is one forward pass over text, images, videos or recordings, or writes text.

    Raises:
        UnsupportedArchitectureError: if it is neither.
    """
    if writes(model):
        check_writes(model)
    else:
        check_one_pass(model)


def _check_rows(model: PreTrainedModel) -> None:
    """Raises an UnsupportedArchitectureError for a model that computes long rows in blocks."""
    if any(layer.spec.long is not None for layer in collaborative_layers(model).values()):
        raise UnsupportedArchitectureError(
            f"{type(model).__name__} computes short rows as before and long ones in blocks, as many as a row has; a "
            "graph is one computation for rows of any length. Export a model that computes all like short ones: "
            "collab lengthen MODEL OUT --attention dense."
        )


def check_one_pass(model: PreTrainedModel) -> None:
    """Raises an UnsupportedArchitectureError if a model is not one forward pass over one input."""
    name = type(model).__name__
    if writes(model):
        raise UnsupportedArchitectureError(
            f"{name} writes text with a cache that grows at every step, so it is no single graph without one."
        )
    if hasattr(model.config, "text_config") and hasattr(model.config, "vision_config"):
        raise UnsupportedArchitectureError(
            f"{name} reads texts and images, which are no single input. Export its parts."
        )
    _check_rows(model)
    input_kind(model)  # raises


def check_writes(model: PreTrainedModel) -> None:
    """Raises an UnsupportedArchitectureError for a decoder that has no head to write with, or reads states alone."""
    name = type(model).__name__
    if not model.can_generate():
        raise UnsupportedArchitectureError(
            f"{name} has a decoder and no head to write with. Encoders, their task heads and models that generate "
            "text export."
        )
    if not has_decoder(model) and getattr(model.config, "add_cross_attention", False):
        raise UnsupportedArchitectureError(
            f"{name} reads the states of an encoder that is not part of it. Export the encoder–decoder that it is of."
        )
    if takes_waveforms(model):
        raise UnsupportedArchitectureError(f"{name} reads waveforms and writes text; such models do not export.")
    _check_rows(model)
    input_kind(model)  # raises


def input_axes(model: PreTrainedModel) -> dict[str, tuple[str, ...]]:
    """Inputs of a model's graph, each with the names of its dynamic axes.

    Token types are an input if the model has more than one; what else it reads of every token is, too.
    """
    if input_kind(model) in ("images", "videos"):
        generator = torch.Generator().manual_seed(0)
        return dict.fromkeys(random_images(encoder_of(model), 1, generator), _IMAGE)
    if input_kind(model) == "audio":
        return {model.main_input_name: ("batch", "samples") if takes_waveforms(model) else _IMAGE}
    axes = _CHOICES if has_choices(model) else _TEXT
    further = {name: axes if len(limits) == 1 else (*axes, None) for name, limits in _of_tokens(model).items()}
    return dict.fromkeys(("input_ids", "attention_mask"), axes) | further


def _of_tokens(model: PreTrainedModel) -> dict[str, list[int]]:
    """What a model reads of every token besides its id: by input, what each of its numbers is below."""
    config: Any = encoder_of(model).config
    taken = inspect.signature(model.forward).parameters
    types = getattr(config, "type_vocab_size", None) or 0
    depth = getattr(config, "max_depth", 0)
    limits = {
        # TAPAS has seven.
        "token_type_ids": getattr(config, "type_vocab_sizes", None) or ([types] if types > 1 else []),
        "bbox": [getattr(config, "max_2d_position_embeddings", 0)] * 4,
        "xpath_tags_seq": [getattr(config, "max_xpath_tag_unit_embeddings", 0)] * depth,
        "xpath_subs_seq": [getattr(config, "max_xpath_subs_unit_embeddings", 0)] * depth,
    }
    return {name: each for name, each in limits.items() if name in taken and each}


def sample(model: PreTrainedModel, batch: int, length: int, generator: torch.Generator) -> dict[str, Tensor]:
    """Random inputs: images, videos, recordings, or padded sequences, each half as long as the previous one.

    Args:
        model: a model that passed `check_exportable`.
        batch: rows B.
        length: tokens T, limited to what the model takes.
        generator: random number generator.

    Returns:
        The inputs named by `input_axes`, (B, T), (B, choices, T) or (B, C, height, width).
    """
    config = encoder_of(model).config
    axes = input_axes(model)
    if input_kind(model) in ("images", "videos"):
        return random_images(encoder_of(model), batch, generator)
    if input_kind(model) == "audio":
        return random_audio(model, batch, length, generator)
    length = min(length, longest_input(model))
    shape: tuple[int, ...] = (batch, length)
    seen = torch.tensor([max(1, length >> row) for row in range(batch)]).unsqueeze(1) > torch.arange(length)  # (B, T)
    if len(axes["input_ids"]) == 3:
        shape = (batch, 3, length)
        seen = seen.unsqueeze(1).expand(shape)
    tokens = torch.randint(config.vocab_size, shape, generator=generator)
    padding = (getattr(config, "pad_token_id", None) or 0) % config.vocab_size  # a negative one counts from the end
    inputs = {
        "input_ids": torch.where(seen, tokens, padding),
        "attention_mask": seen.long(),
    }
    for name, limits in _of_tokens(model).items():
        drawn = [torch.randint(limit, shape, generator=generator) for limit in limits]
        inputs[name] = drawn[0] if len(limits) == 1 else torch.stack(drawn, dim=-1)
    if "bbox" in inputs:  # left, top, right and bottom
        inputs["bbox"] = inputs["bbox"].unflatten(-1, (2, 2)).sort(dim=-2).values.flatten(-2)
    return inputs


def samples(model: PreTrainedModel, seed: int = 0) -> list[dict[str, Tensor]]:
    """Inputs of several batch sizes and lengths, including one row and one token, with and without padding."""
    generator = torch.Generator().manual_seed(seed)
    sizes = ((1, 1), (1, 7), (3, 16), (4, 33), (2, _LONGEST))
    return [sample(model, batch, length, generator) for batch, length in sizes]


class Granted:
    """What a model takes for granted where its batch lacks it; its graph has to be given that, or never reads it.

    Args:
        model: the model.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        config: Any = encoder_of(model).config
        numbers = {name: [0] * len(limits) for name, limits in _of_tokens(model).items()}
        for name, entry in (("xpath_tags_seq", "tag_pad_id"), ("xpath_subs_seq", "subs_pad_id")):
            if name in numbers:
                numbers[name] = [getattr(config, entry)] * len(numbers[name])
        # Of every token.
        self._numbers = {"attention_mask": [1], "token_type_ids": [0], **numbers}
        # Spectrograms of one size have no padding that a mask could hide.
        self._ignored = {"labels"} | ({"attention_mask"} if model.main_input_name == "input_features" else set())

    def with_all(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """A batch with what it lacks; entries that are no tensors, such as None, are left out."""
        given = {name: value for name, value in batch.items() if isinstance(value, Tensor)}
        ids = given.get("input_ids")
        if ids is None:
            return given
        missing = {name: ids.new_tensor(row) for name, row in self._numbers.items() if name not in given}
        return {
            name: row.expand(*ids.shape, len(row)) if len(row) > 1 else row.expand(ids.shape)
            for name, row in missing.items()
        } | given

    def unread(self, batch: Mapping[str, Tensor], names: Collection[str]) -> list[str]:
        """The inputs of a batch that a graph with inputs of these names does not read, and its model would."""
        rest = [name for name in batch if name not in {*names, *self._ignored} and not name.startswith("decoder_")]
        return [
            name
            for name in rest
            if name not in self._numbers or bool((batch[name] != batch[name].new_tensor(self._numbers[name])).any())
        ]


def feed_of(batch: Mapping[str, Tensor], names: Collection[str], granted: Granted) -> Feed:
    """The inputs of a graph, by their names, from a model's batch.

    Raises:
        ConfigurationError: if the batch lacks one, or has another than the model takes for granted.
    """
    given, batch = batch, granted.with_all(batch)
    missing = [name for name in names if name not in batch]
    if missing:
        raise ConfigurationError(f"The graph needs {' and '.join(missing)}, by name; given were {', '.join(given)}.")
    unknown = granted.unread(batch, names)
    if unknown:
        raise ConfigurationError(
            f"The graph does not read {' and '.join(unknown)}; its inputs are {', '.join(names)}. Give rows without "
            "that (recordings of one length need no mask), or run the model in PyTorch."
        )
    tensors = {name: batch[name] for name in names}
    return {name: (each if each.is_floating_point() else each.long()).numpy() for name, each in tensors.items()}
