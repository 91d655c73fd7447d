"""Examples as features with labels, and batches of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers import DataCollatorForLanguageModeling, PreTrainedModel

from ..data.features import Batch, Feature, collate, text_features
from ..errors import ConfigurationError
from ..inputs import longest_input
from .examples import Examples, class_numbers, numbers
from .task import Task

IGNORED = -100
"""The label of a token that has none; what transformers' losses leave out."""

MASKED = 0.15


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
    return [str(names[number]) for number in range(len(names))]


def collator(task: Task, model: PreTrainedModel, tokenizer: Any) -> Callable[[list[Feature]], Batch]:
    """What makes a batch of features with labels: padded, and for masked language models masked anew every time.

    Raises:
        ConfigurationError: if the tokenizer has no mask token and the task needs one.
    """
    if task.kind == "masked-lm":
        if tokenizer.mask_token is None:
            raise ConfigurationError("The tokenizer has no mask token, so this is no masked language model.")
        return DataCollatorForLanguageModeling(tokenizer, mlm_probability=MASKED)

    def make(features: list[Feature]) -> Batch:
        if task.kind == "token-classification":
            return padded(model, tokenizer, features)
        batch = collate(model, tokenizer, _without_labels(features))
        dtype = torch.long if task.kind == "classification" else torch.float32
        batch["labels"] = torch.tensor([row["labels"] for row in features], dtype=dtype)
        return batch

    return make


def masked(features: Sequence[Feature], tokenizer: Any, seed: int) -> list[Feature]:
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


def padded(model: PreTrainedModel, tokenizer: Any, features: Sequence[Feature]) -> Batch:
    """A batch of rows that have a label for every token."""
    batch = collate(model, tokenizer, _without_labels(features))
    length = batch["input_ids"].shape[1]
    batch["labels"] = torch.full((len(features), length), IGNORED)
    for number, row in enumerate(features):
        count = len(row["labels"])
        place = slice(length - count, length) if tokenizer.padding_side == "left" else slice(count)
        batch["labels"][number, place] = torch.tensor(row["labels"])
    return batch


def _without_labels(features: Sequence[Feature]) -> list[Feature]:
    return [{name: row[name] for name in row if name != "labels"} for row in features]


def _encode_words(examples: Examples, model: PreTrainedModel, tokenizer: Any, max_length: int | None) -> list[Feature]:
    """Words in pieces; the first piece of a word has its label."""
    if not tokenizer.is_fast:
        raise ConfigurationError("Token classification needs a fast tokenizer, which knows the word of every token.")

    limit = longest_input(model)
    encoded = tokenizer(
        examples.texts,
        is_split_into_words=True,
        truncation=True,
        max_length=min(max_length or limit, limit),
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
