"""Examples as features with labels, and batches of them."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..errors import ConfigurationError, DataError
from ..models.inputs import longest_text
from ..steps.step import DataSummary
from .batches import Batch, Feature, collate, without_labels
from .examples import Examples, class_numbers, numbers
from .features import pair_features, text_features
from .task import Task

IGNORED = -100
"""The label of a token that the losses of transformers ignore."""

MASKED = 0.15

Collate = Callable[[list[Feature]], Batch]


def encode(
    task: Task, examples: Examples, model: PreTrainedModel, tokenizer: Any, max_length: int | None = None
) -> list[Feature]:
    """Encodes rows for a model, each with ``labels`` unless the task makes its own.

    Raises:
        DataError: if a label does not fit the model's head.
    """
    if task.kind == "token-classification":
        return _encode_words(examples, model, tokenizer, max_length)
    if task.kind == "translation":
        return pair_features(model, tokenizer, examples.texts, max_length)
    features = text_features(model, tokenizer, examples.texts, max_length)
    if task.kind == "masked-lm":
        return features
    if task.kind == "regression" and len(names_of(model)) != 1:
        raise DataError(f"The model's head answers with {len(names_of(model))} numbers, and regression needs one.")
    labels: Sequence[Any]
    labels = class_numbers(examples, names_of(model)) if task.kind == "classification" else numbers(examples)
    return [feature | {"labels": label} for feature, label in zip(features, labels, strict=True)]


def names_of(model: PreTrainedModel) -> list[str]:
    """The classes of a model's head, in order."""
    names: Any = model.config.id2label
    return [str(names[number]) for number in sorted(names)]


def examples_summary(task: Task, examples: Examples) -> DataSummary:
    """The source of rows with labels, for reports."""
    summary: DataSummary = {"source": examples.name, "rows": len(examples.texts)}
    return summary | {"masked": MASKED} if task.kind == "masked-lm" else summary


def collator(task: Task, model: PreTrainedModel, tokenizer: Any) -> Collate:
    """A function that makes a padded batch of features with labels (without for masked-lm; see `mask_batch`).

    Raises:
        ConfigurationError: if the tokenizer has no mask token and the task needs one.
    """
    if task.kind == "masked-lm":
        if tokenizer.mask_token is None:
            raise ConfigurationError("The tokenizer has no mask token, so it cannot train a masked language model.")
        return lambda features: collate(model, tokenizer, features)

    def make(features: list[Feature]) -> Batch:
        if task.kind in ("token-classification", "translation"):
            return _padded(model, tokenizer, features)
        batch = collate(model, tokenizer, without_labels(features))
        dtype = torch.long if task.kind == "classification" else torch.float32
        batch["labels"] = torch.tensor([row["labels"] for row in features], dtype=dtype)
        return batch

    return make


def mask_batch(batch: Batch, tokenizer: Any, seed: int, step: int) -> Batch:
    """Masks a training batch as BERT does: of the chosen tokens, 80 % are masked, 10 % replaced and 10 % kept.

    The choice depends only on the row, the seed and the step, so it is the same in any number of processes and after
    an interruption.
    """
    ids = batch["input_ids"].clone()  # (B, T)
    special = torch.tensor(tokenizer.all_special_ids, device=ids.device)
    rows = zip(ids.cpu(), batch["attention_mask"].cpu().bool(), strict=True)
    draws = torch.stack([_draw(row, seen, seed, step) for row, seen in rows]).to(ids.device)  # (B, 3, T)
    first = draws[:, 0].masked_fill(torch.isin(ids, special), 2.0)  # (B, T)
    # At least one token of every row, unless it has only special tokens.
    chosen = (first < MASKED) | ((first == first.amin(dim=1, keepdim=True)) & (first < 2))
    labels = ids.masked_fill(~chosen, IGNORED)
    random = (draws[:, 2] * len(tokenizer)).long().clamp(max=len(tokenizer) - 1)
    ids = torch.where(chosen & (draws[:, 1] < 0.8), torch.full_like(ids, tokenizer.mask_token_id), ids)
    ids = torch.where(chosen & (draws[:, 1] >= 0.9), random, ids)
    return {**batch, "input_ids": ids, "labels": labels}


def _draw(ids: Tensor, seen: Tensor, seed: int, step: int) -> Tensor:
    row = zlib.crc32(ids[seen].numpy().tobytes())  # without the padding, which differs between batches
    generator = torch.Generator().manual_seed((row * 1_000_003 + seed * 10_007 + step) % 2**63)
    return torch.rand(len(ids), 3, generator=generator).T  # so that a row's draws do not depend on its padding


def masked(features: Sequence[Feature], tokenizer: Any, seed: int) -> list[Feature]:
    """Rows of a masked language model with 15 % of their tokens masked, whose numbers are the ``labels``.

    Equal rows have the same tokens masked, so that they can be recognized as equal.
    """
    special = torch.tensor(tokenizer.all_special_ids)
    rows = []
    for feature in features:
        ids = torch.tensor(feature["input_ids"])  # (T,)
        every = torch.ones(len(ids), dtype=torch.bool)
        draw = _draw(ids, every, seed, 0)[0].masked_fill(torch.isin(ids, special), 2.0)
        chosen = draw < MASKED
        if not chosen.any() and (draw < 2).any():
            chosen[draw.argmin()] = True
        labels = ids.masked_fill(~chosen, IGNORED).tolist()
        rows.append(
            feature | {"input_ids": ids.masked_fill(chosen, tokenizer.mask_token_id).tolist(), "labels": labels}
        )
    return rows


def prepare_eval(
    task: Task, model: PreTrainedModel, tokenizer: Any, features: Sequence[Feature], seed: int
) -> tuple[list[Feature], Collate]:
    """Prepares encoded rows for evaluation, with the function that makes a batch of them.

    Args:
        task: the task.
        model: the model to run on them.
        tokenizer: its tokenizer.
        features: what `encode` returned.
        seed: seed of the masked tokens of masked language models.
    """
    make = collator(task, model, tokenizer)
    if task.kind != "masked-lm":
        return list(features), make
    return masked(features, tokenizer, seed), lambda rows: _padded(model, tokenizer, rows)


def _padded(model: PreTrainedModel, tokenizer: Any, features: Sequence[Feature]) -> Batch:
    """A padded batch of rows with one label per token, of the decoder if there is one."""
    batch = collate(model, tokenizer, without_labels(features))
    length = batch["decoder_input_ids" if "decoder_input_ids" in batch else "input_ids"].shape[1]
    left = tokenizer.padding_side == "left" and "decoder_input_ids" not in batch
    batch["labels"] = torch.full((len(features), length), IGNORED)
    for number, row in enumerate(features):
        count = len(row["labels"])
        place = slice(length - count, length) if left else slice(count)
        batch["labels"][number, place] = torch.tensor(row["labels"])
    return batch


def _encode_words(examples: Examples, model: PreTrainedModel, tokenizer: Any, max_length: int | None) -> list[Feature]:
    """Splits words into tokens; the first token of a word has its label, the others none."""
    if not tokenizer.is_fast:
        raise ConfigurationError("Token classification needs a fast tokenizer, which tells the word of every token.")
    encoded = tokenizer(
        examples.texts,
        is_split_into_words=True,
        truncation=True,
        max_length=longest_text(model, max_length),
        verbose=False,
    )
    features = []
    for row, labels in enumerate(class_numbers(examples, names_of(model))):
        words = encoded.word_ids(row)
        tags = [
            IGNORED if word is None or (place and words[place - 1] == word) else labels[word]
            for place, word in enumerate(words)
        ]
        features.append({name: encoded[name][row] for name in encoded} | {"labels": tags})
    return features
