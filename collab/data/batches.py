"""Batches of features: rows of similar length together, padded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from ..errors import DataError
from ..models.inputs import decoder_vocabulary, encoder_of, has_choices, input_kind

Feature = dict[str, Any]
"""A tokenizer's output for one row, the pixels of one image, or one recording; and what a decoder reads."""
Batch = dict[str, Tensor]

_TOKENS_OF_PASS = 4096
_LOGITS = 2**27  # of a batch; half a gigabyte
_TOKENS, _GRAPH_BYTES = 640, 112 * 10**6
_TOGETHER = 16  # rows without padding


def without_labels(features: Sequence[Feature]) -> list[Feature]:
    """Features without their labels."""
    return [{name: row[name] for name in row if name != "labels"} for row in features]


def length_of(feature: Feature) -> int:
    """Tokens of a row, the longer of source and target if it has both; 1 for an image or a recording."""
    return max(len(feature["input_ids"]), len(feature.get("decoder_input_ids", ()))) if "input_ids" in feature else 1


def evenly_spaced(features: Sequence[Feature], count: int) -> Sequence[Feature]:
    """At most `count` rows, evenly spaced."""
    return features if len(features) <= count else [features[row * len(features) // count] for row in range(count)]


def by_length(features: Sequence[Feature], rows: int) -> Iterator[list[int]]:
    """The numbers of `rows` rows of similar length at a time, the shortest first."""
    order = sorted(range(len(features)), key=lambda row: length_of(features[row]))
    for start in range(0, len(order), rows):
        yield order[start : start + rows]


def within_tokens(features: Sequence[Feature], tokens: int, rows: int | None = None) -> Iterator[list[int]]:
    """The numbers of rows of similar length at a time, the shortest first.

    Args:
        features: the rows.
        tokens: tokens at a time at most, unless a single row has more.
        rows: rows at a time at most; None for any number.
    """
    batch: list[int] = []
    for row in sorted(range(len(features)), key=lambda row: length_of(features[row])):
        if batch and (len(batch) == rows or (len(batch) + 1) * length_of(features[row]) > tokens):
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch


def collate(model: PreTrainedModel, tokenizer: Any | None, features: Sequence[Feature]) -> Batch:
    """Combines rows into one padded batch, in the shape that the model's head needs.

    Args:
        model: the model to run on it.
        tokenizer: pads the rows; without one, they are padded with zeros.
        features: one per row.

    Raises:
        DataError: if the model needs further inputs.
    """
    if getattr(model.config, "add_cross_attention", False):
        raise DataError(
            "This model attends to another model's states, which rows of text do not give. Pass batches with "
            "encoder_hidden_states or a callable that runs the model (Python), or convert by the weights alone, with "
            "no calibration (none)."
        )
    targets = {name for name in features[0] if name.startswith("decoder_")}
    if targets:
        read = _padded_targets(model, [{name: row[name] for name in targets} for row in features])
        rest = [{name: row[name] for name in row if name not in targets} for row in features]
        return collate(model, tokenizer, rest) | read
    batch = _padded(tokenizer if "input_ids" in features[0] else None, features)
    if has_choices(model):
        return {name: value.unsqueeze(1) for name, value in batch.items()}  # one choice for each example
    return batch


def _padded(tokenizer: Any | None, features: Sequence[Feature]) -> Batch:
    """Padded rows: by a tokenizer, or with zeros, which a mask hides, if there is none or it has no token for that."""
    if tokenizer is not None and tokenizer.pad_token_id is not None:
        return dict(tokenizer.pad(list(features), return_tensors="pt", verbose=False))
    side = "right"
    if tokenizer is not None:
        side = tokenizer.padding_side
        features = [{"attention_mask": [1] * len(row["input_ids"])} | row for row in features]
    columns = {name: [torch.as_tensor(row[name]) for row in features] for name in features[0]}
    return {name: pad_sequence(values, batch_first=True, padding_side=side) for name, values in columns.items()}


def _padded_targets(model: PreTrainedModel, rows: Sequence[Feature]) -> Batch:
    """The decoder's inputs, padded on the right."""
    padding = {"decoder_input_ids": getattr(model.config, "pad_token_id", None) or 0, "decoder_attention_mask": 0}
    return {
        name: pad_sequence([torch.tensor(row[name]) for row in rows], batch_first=True, padding_value=value)
        for name, value in padding.items()
    }


def tokens_of_pass(model: PreTrainedModel) -> int:
    """Tokens in a batch at most where a model runs without gradients, unless one row alone has more.

    They are fewer where every token has logits of a large vocabulary.
    """
    if model.get_output_embeddings() is None:
        return _TOKENS_OF_PASS
    return min(_TOKENS_OF_PASS, _LOGITS // decoder_vocabulary(model))


def row_batches(model: PreTrainedModel, processor: Any | None, features: Sequence[Feature], rows: int) -> list[Batch]:
    """Batches of rows of similar length: at most `rows` of them and `tokens_of_pass` tokens.

    Recordings come one at a time, because some models have no mask by which they would not hear the padding.
    """
    rows = 1 if input_kind(model) == "audio" else rows
    parts = within_tokens(features, tokens_of_pass(model), rows)
    return [collate(model, processor, [features[row] for row in part]) for part in parts]


def tokens_in_batch(model: PreTrainedModel) -> int:
    """Tokens in a batch at most, unless one row alone has more.

    The more tokens, the less of a pass over a small model is overhead. The graph of a token takes 13 to 18 D numbers in
    every layer: a batch has at most 640 tokens and as many as take 112 MB, but of large models D/5, with which a pass
    takes less memory than the moments do (4 D² numbers a layer, of twice the size).
    """
    config = encoder_of(model).config
    width, layers = config.hidden_size, getattr(config, "num_hidden_layers", None) or 1
    return max(64, width // 5, min(_TOKENS, _GRAPH_BYTES // (4 * 18 * width * layers)))


def batched(model: PreTrainedModel, processor: Any | None, features: Sequence[Feature]) -> list[Batch]:
    """Padded batches of rows of similar length; images and recordings one at a time: each is some hundred tokens.

    Args:
        model: the model to run on them.
        processor: its tokenizer, or image processor.
        features: one per row.
    """
    tokens = tokens_in_batch(model) if input_kind(model) == "text" else 0
    return [collate(model, processor, [features[row] for row in rows]) for rows in within_tokens(features, tokens)]


def batches_by_length(collate: Callable[[list[Feature]], Batch], features: Sequence[Feature], rows: int) -> list[Batch]:
    """Batches of `rows` rows of similar length, which a function makes of their features."""
    return [collate([features[number] for number in numbers]) for numbers in by_length(features, rows)]


def of_one_length(model: PreTrainedModel, processor: Any | None, features: Sequence[Feature]) -> list[Batch]:
    """Batches of at most 16 rows that need no padding, which would count among the activations of a graph."""
    alike: dict[int, list[Feature]] = {}
    for feature in features:
        alike.setdefault(length_of(feature), []).append(feature)
    return [
        collate(model, processor, same[first : first + _TOGETHER])
        for _, same in sorted(alike.items())
        for first in range(0, len(same), _TOGETHER)
    ]
