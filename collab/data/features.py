"""Features of single rows: text, images, recordings and random words, encoded for a model."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..errors import DataError
from ..models.inputs import (
    decoder_inputs,
    decoder_vocabulary,
    encoder_of,
    has_decoder,
    input_kind,
    least_samples,
    longest_target,
    longest_text,
    takes_waveforms,
)
from .audio import Recording
from .batches import Feature, by_length, collate, without_labels
from .rows import Row
from .targets import Writer, divided, target_feature, target_features

VIDEOS = (
    "Videos are not read from files. Decode them, and pass batches with pixel_values, (B, frames, channels, height, "
    "width), in Python; to convert by the weights alone, choose no calibration (none)."
)
"""What to do about data for a model of videos."""

_LENGTHS = (16, 32, 64, 128)  # tokens of a row of random words
_WRITTEN = 16  # rows that an encoder-decoder writes outputs for at a time


def text_features(
    model: PreTrainedModel, tokenizer: Any, rows: Sequence[Row], max_length: int | None = None
) -> list[Feature]:
    """Tokenizes rows of text.

    Args:
        model: the model to run on them.
        tokenizer: its tokenizer.
        rows: strings or pairs of strings.
        max_length: tokens of a row at most; None for as many as the model takes, which is also the limit.

    Raises:
        DataError: if rows are of both kinds, or the tokenizer is another model's.
    """
    length = longest_text(model, max_length)
    texts: list[Sequence[str]] = [(row,) if isinstance(row, str) else row for row in rows]
    if len({*map(len, texts)}) > 1:
        raise DataError("Some rows are single texts and others pairs. Give rows of one kind.")
    firsts = [row[0] for row in texts]
    seconds = None if len(texts[0]) == 1 else [row[1] for row in texts]
    # A tokenizer warns of every text beyond the model's limit, truncated or not.
    encoded = tokenizer(firsts, seconds, truncation=True, max_length=length, verbose=False)
    largest = max((max(ids, default=0) for ids in encoded["input_ids"]), default=0)
    check_known(largest, encoder_of(model).config.vocab_size)
    return [{name: encoded[name][row] for name in encoded} for row in range(len(rows))]


def check_known(token: int, size: int) -> None:
    """Raises a DataError for the largest token of some text if a model's vocabulary, of this size, lacks it."""
    if token >= size:
        raise DataError(
            f"The tokenizer makes a token {token}, but the model's vocabulary ends at {size - 1}. They do not belong "
            "together."
        )


def row_features(
    model: PreTrainedModel,
    tokenizer: Any,
    rows: Sequence[Row],
    max_length: int | None = None,
    writer: Writer | None = None,
) -> list[Feature]:
    """Tokenizes rows of text, as `source_features` for an encoder-decoder and as `text_features` for other models."""
    if has_decoder(model):
        return source_features(model, tokenizer, rows, max_length, writer)
    return text_features(model, tokenizer, rows, max_length)


def source_features(
    model: PreTrainedModel,
    tokenizer: Any,
    rows: Sequence[Row],
    max_length: int | None = None,
    writer: Writer | None = None,
) -> list[Feature]:
    """Tokenizes rows of text for an encoder-decoder, with what its decoder reads.

    Args:
        model: the model to run on them.
        tokenizer: its tokenizer.
        rows: pairs of a source and its target, or sources, whose targets the model then writes itself.
        max_length: tokens of a source or a target at most; None for as many as the model takes, also the limit.
        writer: what writes them; None for `model`, greedily.

    Raises:
        DataError: if some sources have no target, or the tokenizer or the model does not serve them.
    """
    sources, targets = divided(rows)
    if targets is not None:
        return without_labels(pair_features(model, tokenizer, rows, max_length))
    return with_own_targets(model, tokenizer, encoder_features(model, tokenizer, sources, max_length), writer)


def pair_features(
    model: PreTrainedModel, tokenizer: Any, pairs: Sequence[Row], max_length: int | None = None
) -> list[Feature]:
    """Tokenizes sources and their targets for an encoder-decoder; the tokens of the targets are the ``labels``.

    Args:
        model: the model to run on them.
        tokenizer: its tokenizer.
        pairs: pairs of strings.
        max_length: as in `source_features`.

    Raises:
        DataError: if a source has no target, or the tokenizer does not encode targets.
    """
    sources, targets = divided(pairs)
    if targets is None:
        raise DataError("Every source needs a target here: name two columns, of the sources and of the targets.")
    features = encoder_features(model, tokenizer, sources, max_length)
    read = target_features(model, tokenizer, targets, max_length)
    return [feature | target for feature, target in zip(features, read, strict=True)]


def encoder_features(
    model: PreTrainedModel, tokenizer: Any, sources: Sequence[str], max_length: int | None
) -> list[Feature]:
    """Tokenized sources; a tokenizer of another family may return more than an encoder-decoder takes."""
    return [
        {name: feature[name] for name in ("input_ids", "attention_mask")}
        for feature in text_features(model, tokenizer, sources, max_length)
    ]


def with_own_targets(
    model: PreTrainedModel, processor: Any, features: Sequence[Feature], writer: Writer | None = None
) -> list[Feature]:
    """The rows of an encoder-decoder with what its decoder reads when it, or `writer`, writes outputs."""
    writer = writer or Writer(model)
    groups = list(by_length(features, _WRITTEN if input_kind(model) == "text" else 1))
    targets = writer.written(features, groups, partial(collate, model, processor))
    return [feature | target for feature, target in zip(features, targets, strict=True)]


def image_features(
    model: PreTrainedModel, processor: Any, rows: Sequence[Row], writer: Writer | None = None
) -> list[Feature]:
    """Pixel values of images; `writer` as in `source_features`."""
    names = ("pixel_values", "pixel_attention_mask", "spatial_shapes")
    encoded = (processor(images=[row.convert("RGB")], return_tensors="pt") for row in rows)
    features = [
        {name: image[name][0].to(model.dtype if name == names[0] else torch.long) for name in names if name in image}
        for image in encoded
    ]
    return with_own_targets(model, processor, features, writer) if has_decoder(model) else features


def audio_features(
    model: PreTrainedModel, extractor: Any, rows: Sequence[Recording], writer: Writer | None = None
) -> list[Feature]:
    """Waveforms or spectrograms of recordings; `writer` as in `source_features`.

    Raises:
        DataError: if a recording has another sampling rate than the model takes, or is too short.
    """
    shortest = 1 if model.main_input_name == "input_features" else extractor.sampling_rate // 40  # a frame of 25 ms
    shortest = least_samples(model) if takes_waveforms(model) else shortest
    for row in rows:
        if row.rate != extractor.sampling_rate:
            raise DataError(
                f"{row} has {row.rate} samples per second, and the model takes {extractor.sampling_rate}. "
                f"Resample the files, for example with ffmpeg -i in.wav -ar {extractor.sampling_rate} out.wav."
            )
        if len(row.waveform) < shortest:
            raise DataError(f"{row} has {len(row.waveform)} samples, and the model needs at least {shortest}.")
    name = model.main_input_name
    encoded = (extractor(row.waveform, sampling_rate=row.rate, return_tensors="pt") for row in rows)
    features = [{name: values[name][0].to(model.dtype)} for values in encoded]
    return with_own_targets(model, extractor, features, writer) if has_decoder(model) else features


def synthetic_features(
    model: PreTrainedModel, tokenizer: Any | None, samples: int, max_length: int | None = None, seed: int = 0
) -> list[Feature]:
    """Rows of random words, between the special tokens that the tokenizer adds at the ends.

    Which tokens a layer attends to depends on how long the row is. Rows therefore have 16, 32, 64 and 128 tokens,
    as far as the model takes them; those of each length have as many tokens together, and all rows 16 for each sample.

    Args:
        model: the model to run on them.
        tokenizer: tells which tokens are special or unused; without one, only those that the config names are omitted.
        samples: number of rows at most.
        max_length: tokens of a row at most; None for as many as the model takes, which is also the limit.
        seed: seed of the random tokens.

    Returns:
        The rows, by length.

    Raises:
        DataError: if the model does not take tokens.
    """
    if (kind := input_kind(model)) != "text":
        instead = (
            VIDEOS
            if kind == "videos"
            else (
                f"Give a folder of {kind} or a data set; to convert by the weights alone, choose no calibration (none)."
            )
        )
        raise DataError(f"There is no synthetic data for {kind}. {instead}")
    generator = torch.Generator().manual_seed(seed)
    words, before, after = _vocabulary(model, tokenizer)
    longest = longest_text(model, max_length)
    lengths = [length for length in _LENGTHS if length <= longest] or [longest]
    tokens = lengths[0] * samples / len(lengths)  # of each length
    rows = [length for length in lengths for _ in range(max(1, round(tokens / length)))][:samples]
    features = []
    for length in rows:
        drawn = words[torch.randint(len(words), (max(1, length - len(before) - len(after)),), generator=generator)]
        ids = torch.cat([before, drawn, after]).tolist()
        feature: Feature = {"input_ids": ids, "attention_mask": [1] * len(ids)}
        if has_decoder(model):
            written = words[words < decoder_vocabulary(model)]
            drawn = written[torch.randint(len(written), (len(drawn),), generator=generator)]
            labels = torch.cat([before, drawn, after])[: longest_target(model)]
            feature |= target_feature(decoder_inputs(model, labels.unsqueeze(0))[0])
        features.append(feature)
    return features


def _vocabulary(model: PreTrainedModel, tokenizer: Any | None) -> tuple[Tensor, Tensor, Tensor]:
    """Token ids to draw from, and the special tokens before and after a text."""
    size = encoder_of(model).config.vocab_size
    if tokenizer is None:
        special = {
            value
            for name, value in encoder_of(model).config.to_dict().items()
            if name.endswith("_token_id") and isinstance(value, int)
        }
        words = [number for number in range(size) if number not in special]
        return (
            torch.tensor(words or list(range(size))),
            torch.empty(0, dtype=torch.long),
            torch.empty(0, dtype=torch.long),
        )
    special = set(tokenizer.all_special_ids)
    names = {number: name for name, number in tokenizer.get_vocab().items() if number < size}
    words = [number for number, name in sorted(names.items()) if number not in special and not _unused(name)]
    if not words:
        words = sorted(names) or list(range(size))
    before, after = special_tokens_around(tokenizer, tokenizer.decode([words[len(words) // 2]]) or "a")
    return torch.tensor(words), torch.tensor(before, dtype=torch.long), torch.tensor(after, dtype=torch.long)


def special_tokens_around(tokenizer: Any, text: str) -> tuple[list[int], list[int]]:
    """The special tokens that a tokenizer puts before and after a text."""
    special = set(tokenizer.all_special_ids)
    ids = tokenizer(text, verbose=False)["input_ids"]
    ordinary = [place for place, number in enumerate(ids) if number not in special]
    first, last = (ordinary[0], ordinary[-1] + 1) if ordinary else (len(ids), len(ids))
    return ids[:first], ids[last:]


def _unused(name: str) -> bool:
    return name.startswith(("[unused", "<unused", "<extra_id"))
