"""Examples as features with labels, and batches of them."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..errors import ConfigurationError
from ..models.inputs import longest_text
from .examples import Examples, class_numbers, numbers
from .features import Batch, Feature, collate, text_features
from .task import Task

IGNORED = -100
"""The label of a token that has none; what transformers' losses leave out."""

MASKED = 0.15

Collate = Callable[[list[Feature]], Batch]


def encode(
    task: Task, examples: Examples, model: PreTrainedModel, tokenizer: Any, max_length: int | None = None
) -> list[Feature]:
    """Rows as a model takes them, each with ``labels`` unless the task makes its own.

    Raises:
        DataError: if a label does not fit the model's head.
    """
    if task.kind == "token-classification":
        return _encode_words(examples, model, tokenizer, max_length)
    features = text_features(model, tokenizer, examples.texts, max_length)
    if task.kind == "masked-lm":
        return features
    labels: Sequence[Any]
    labels = class_numbers(examples, names_of(model)) if task.kind == "classification" else numbers(examples)
    return [feature | {"labels": label} for feature, label in zip(features, labels, strict=True)]


def names_of(model: PreTrainedModel) -> list[str]:
    """The classes of a model's head, in order."""
    names: Any = model.config.id2label
    return [str(names[number]) for number in sorted(names)]


def collator(task: Task, model: PreTrainedModel, tokenizer: Any) -> Collate:
    """What makes a padded batch of features with labels; of masked language models without, see `mask_batch`.

    Raises:
        ConfigurationError: if the tokenizer has no mask token and the task needs one.
    """
    if task.kind == "masked-lm":
        if tokenizer.mask_token is None:
            raise ConfigurationError("The tokenizer has no mask token, so this is no masked language model.")
        return lambda features: collate(model, tokenizer, features)

    def make(features: list[Feature]) -> Batch:
        if task.kind == "token-classification":
            return _padded(model, tokenizer, features)
        batch = collate(model, tokenizer, without_labels(features))
        dtype = torch.long if task.kind == "classification" else torch.float32
        batch["labels"] = torch.tensor([row["labels"] for row in features], dtype=dtype)
        return batch

    return make


def mask_batch(batch: Batch, tokenizer: Any, seed: int, step: int) -> Batch:
    """Masks a batch to learn from: of the tokens chosen eight in ten are hidden, one is replaced, one stays (BERT).

    What is chosen hangs on the row, the seed and the step alone, so it is the same in any number of processes and
    after an interruption.
    """
    ids = batch["input_ids"].clone()  # (B, T)
    special = torch.tensor(tokenizer.all_special_ids, device=ids.device)
    rows = zip(ids.cpu(), batch["attention_mask"].cpu().bool(), strict=True)
    draws = torch.stack([_draw(row, seen, seed, step) for row, seen in rows]).to(ids.device)  # (B, 3, T)
    first = draws[:, 0].masked_fill(torch.isin(ids, special), 2.0)  # (B, T)
    # One of every row at least, unless it has only special tokens.
    chosen = (first < MASKED) | ((first == first.amin(dim=1, keepdim=True)) & (first < 2))
    labels = ids.masked_fill(~chosen, IGNORED)
    random = (draws[:, 2] * len(tokenizer)).long().clamp(max=len(tokenizer) - 1)
    ids = torch.where(chosen & (draws[:, 1] < 0.8), torch.full_like(ids, tokenizer.mask_token_id), ids)
    ids = torch.where(chosen & (draws[:, 1] >= 0.9), random, ids)
    return {**batch, "input_ids": ids, "labels": labels}


def _draw(ids: Tensor, seen: Tensor, seed: int, step: int) -> Tensor:
    row = zlib.crc32(ids[seen].numpy().tobytes())  # without the padding, which is another in another batch
    generator = torch.Generator().manual_seed((row * 1_000_003 + seed * 10_007 + step) % 2**63)
    return torch.rand(len(ids), 3, generator=generator).T  # so that a row's draws do not hang on its padding


def _masked(features: Sequence[Feature], tokenizer: Any, seed: int) -> list[Feature]:
    """Rows of a masked language model, masked once and for all, to evaluate on."""
    generator = torch.Generator().manual_seed(seed)
    special = torch.tensor(tokenizer.all_special_ids)
    found = []
    for feature in features:
        ids = torch.tensor(feature["input_ids"])
        draw = torch.rand(len(ids), generator=generator).masked_fill(torch.isin(ids, special), 2.0)
        chosen = draw < MASKED
        if not chosen.any() and (draw < 2).any():
            chosen[draw.argmin()] = True
        labels = ids.masked_fill(~chosen, IGNORED).tolist()
        found.append(
            feature | {"input_ids": ids.masked_fill(chosen, tokenizer.mask_token_id).tolist(), "labels": labels}
        )
    return found


def to_judge(
    task: Task, model: PreTrainedModel, tokenizer: Any, features: Sequence[Feature], seed: int
) -> tuple[list[Feature], Collate]:
    """Encoded rows as they are evaluated, and what makes a batch of them.

    Args:
        task: what they are for.
        model: that will be run on them.
        tokenizer: its tokenizer.
        features: what `encode` returned.
        seed: of the tokens that are masked, in masked language models.
    """
    make = collator(task, model, tokenizer)
    if task.kind != "masked-lm":
        return list(features), make
    return _masked(features, tokenizer, seed), lambda rows: _padded(model, tokenizer, rows)


def _padded(model: PreTrainedModel, tokenizer: Any, features: Sequence[Feature]) -> Batch:
    """A batch of rows that have a label for every token."""
    batch = collate(model, tokenizer, without_labels(features))
    length = batch["input_ids"].shape[1]
    batch["labels"] = torch.full((len(features), length), IGNORED)
    for number, row in enumerate(features):
        count = len(row["labels"])
        place = slice(length - count, length) if tokenizer.padding_side == "left" else slice(count)
        batch["labels"][number, place] = torch.tensor(row["labels"])
    return batch


def without_labels(features: Sequence[Feature]) -> list[Feature]:
    """Rows as the model takes them."""
    return [{name: row[name] for name in row if name != "labels"} for row in features]


def _encode_words(examples: Examples, model: PreTrainedModel, tokenizer: Any, max_length: int | None) -> list[Feature]:
    """Words in pieces; the first piece of a word has its label."""
    if not tokenizer.is_fast:
        raise ConfigurationError("Token classification needs a fast tokenizer, which knows the word of every token.")
    encoded = tokenizer(
        examples.texts,
        is_split_into_words=True,
        truncation=True,
        max_length=longest_text(model, max_length),
        verbose=False,
    )
    found = []
    for row, labels in enumerate(class_numbers(examples, names_of(model))):
        words = encoded.word_ids(row)
        tags = [
            IGNORED if word is None or (place and words[place - 1] == word) else labels[word]
            for place, word in enumerate(words)
        ]
        found.append({name: encoded[name][row] for name in encoded} | {"labels": tags})
    return found
