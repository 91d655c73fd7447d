"""Batches for a model: from rows of text or images, or from random vocabulary."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..errors import CalibrationError
from ..inputs import has_choices, longest_input
from .data import Row

Batch = dict[str, Tensor]

SYNTHETIC_LENGTH = 16


def tokens_in_batch(model: PreTrainedModel) -> int:
    """Tokens in a batch at most, unless one row alone has more.

    The graph of a token takes some 20 D numbers in every layer and the moments of a layer 4 D² of twice the size, so
    with D/5 tokens the pass takes less memory than the moments do.
    """
    return max(64, model.config.hidden_size // 5)


def text_batches(model: PreTrainedModel, tokenizer: Any, rows: list[Row], max_length: int | None = None) -> list[Batch]:
    """Tokenizes rows of text into padded batches of rows of like length.

    Args:
        model: that will be run on them.
        tokenizer: its tokenizer.
        rows: strings or pairs of strings.
        max_length: tokens at most; None, or more than the model takes, for as many as it takes.
    """
    limit = longest_input(model)
    length = min(max_length or limit, limit)
    firsts = [row if isinstance(row, str) else row[0] for row in rows]
    seconds = None if isinstance(rows[0], str) else [row[1] for row in rows]
    # A tokenizer warns of every text beyond the model's limit, cut or not.
    encoded = tokenizer(firsts, seconds, truncation=True, max_length=length, verbose=False)
    lengths = [len(ids) for ids in encoded["input_ids"]]
    order = sorted(range(len(rows)), key=lambda row: (lengths[row], row))
    batches, start, tokens = [], 0, tokens_in_batch(model)
    while start < len(order):
        stop = start + 1
        while stop < len(order) and (stop + 1 - start) * lengths[order[stop]] <= tokens:
            stop += 1
        features = [{name: encoded[name][row] for name in encoded} for row in order[start:stop]]
        batches.append(_for_head(model, dict(tokenizer.pad(features, return_tensors="pt", verbose=False))))
        start = stop
    return batches


def image_batches(model: PreTrainedModel, processor: Any, rows: list[Row]) -> list[Batch]:
    """Images as a model takes them, one at a time, because each is some hundred tokens."""
    return [
        {"pixel_values": processor(images=[row.convert("RGB")], return_tensors="pt")["pixel_values"].to(model.dtype)}
        for row in rows
    ]


def synthetic_batches(model: PreTrainedModel, tokenizer: Any | None, samples: int, seed: int = 0) -> list[Batch]:
    """Sequences of random vocabulary, with the special tokens at their ends that the tokenizer puts there.

    Args:
        model: that will be run on them.
        tokenizer: says which tokens are special or not used; without one only those that the config names are left out.
        samples: sequences.
        seed: of the random tokens.

    Raises:
        CalibrationError: if the model takes no tokens.
    """
    if model.main_input_name != "input_ids":
        raise CalibrationError(
            "There is no synthetic calibration for images. Give a folder of images or a data set, or convert by the "
            "weights alone with none."
        )
    generator = torch.Generator().manual_seed(seed)
    words, before, after = _vocabulary(model, tokenizer)
    length = max(1, min(SYNTHETIC_LENGTH, longest_input(model)) - len(before) - len(after))
    drawn = words[torch.randint(len(words), (samples, length), generator=generator)]  # (N, length)
    ids = torch.cat([before.expand(samples, -1), drawn, after.expand(samples, -1)], dim=1)
    rows = max(1, tokens_in_batch(model) // ids.shape[1])
    return [
        _for_head(model, {"input_ids": piece, "attention_mask": torch.ones_like(piece)}) for piece in ids.split(rows)
    ]


def _vocabulary(model: PreTrainedModel, tokenizer: Any | None) -> tuple[Tensor, Tensor, Tensor]:
    """Token ids to draw from, and those that stand before and after a text."""
    size = model.config.vocab_size
    if tokenizer is None:
        special = {
            value
            for name, value in model.config.to_dict().items()
            if name.endswith("_token_id") and isinstance(value, int)
        }
        words = [one for one in range(size) if one not in special]
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
    template = tokenizer(tokenizer.decode([words[len(words) // 2]]) or "a")["input_ids"]
    ordinary = [place for place, number in enumerate(template) if number not in special]
    first, last = (ordinary[0], ordinary[-1] + 1) if ordinary else (len(template), len(template))
    return (
        torch.tensor(words),
        torch.tensor(template[:first], dtype=torch.long),
        torch.tensor(template[last:], dtype=torch.long),
    )


def _unused(name: str) -> bool:
    return name.startswith(("[unused", "<unused", "<extra_id"))


def _for_head(model: PreTrainedModel, batch: Batch) -> Batch:
    """A batch shaped as the model's head and its decoder parts want it."""
    if has_choices(model):
        return {name: value.unsqueeze(1) for name, value in batch.items()}  # one choice for each example
    if getattr(model.config, "add_cross_attention", False):
        raise CalibrationError(
            "This model attends to another model's states, which calibration data of one kind does not give. Pass "
            "batches with encoder_hidden_states or a callable that runs the model (Python), or convert by the weights "
            "alone with none."
        )
    return batch
