"""Features as a model takes them, one row at a time, and how rows become a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..errors import DataError
from ..models.inputs import has_choices, longest_input, longest_text
from .rows import Row

Feature = dict[str, Any]
"""What a tokenizer returns for one row, or the pixels of one image."""
Batch = dict[str, Tensor]

SYNTHETIC_LENGTH = 16

_TOKENS = 384


def text_features(
    model: PreTrainedModel, tokenizer: Any, rows: Sequence[Row], max_length: int | None = None
) -> list[Feature]:
    """Tokenizes rows of text.

    Args:
        model: that will be run on them.
        tokenizer: its tokenizer.
        rows: strings or pairs of strings.
        max_length: tokens at most; None, or more than the model takes, for as many as it takes.
    """
    length = longest_text(model, max_length)
    firsts = [row if isinstance(row, str) else row[0] for row in rows]
    seconds = None if isinstance(rows[0], str) or len(rows[0]) == 1 else [row[1] for row in rows]
    # A tokenizer warns of every text beyond the model's limit, cut or not.
    encoded = tokenizer(firsts, seconds, truncation=True, max_length=length, verbose=False)
    return [{name: encoded[name][row] for name in encoded} for row in range(len(rows))]


def image_features(model: PreTrainedModel, processor: Any, rows: Sequence[Row]) -> list[Feature]:
    """Images as pixels."""
    return [
        {"pixel_values": processor(images=[row.convert("RGB")], return_tensors="pt")["pixel_values"][0].to(model.dtype)}
        for row in rows
    ]


def synthetic_features(model: PreTrainedModel, tokenizer: Any | None, samples: int, seed: int = 0) -> list[Feature]:
    """Sequences of random vocabulary, with the special tokens at their ends that the tokenizer puts there.

    Args:
        model: that will be run on them.
        tokenizer: says which tokens are special or not used; without one only those that the config names are left out.
        samples: sequences.
        seed: of the random tokens.

    Raises:
        DataError: if the model takes no tokens.
    """
    if model.main_input_name != "input_ids":
        raise DataError(
            "There is no synthetic data for images. Give a folder of images or a data set; a conversion can go by the "
            "weights alone with none."
        )
    generator = torch.Generator().manual_seed(seed)
    words, before, after = _vocabulary(model, tokenizer)
    length = max(1, min(SYNTHETIC_LENGTH, longest_input(model)) - len(before) - len(after))
    drawn = words[torch.randint(len(words), (samples, length), generator=generator)]  # (N, length)
    ids = torch.cat([before.expand(samples, -1), drawn, after.expand(samples, -1)], dim=1)
    return [{"input_ids": row, "attention_mask": [1] * len(row)} for row in ids.tolist()]


def collate(model: PreTrainedModel, tokenizer: Any | None, features: Sequence[Feature]) -> Batch:
    """Rows as one padded batch, shaped as the model's head wants it.

    Args:
        model: that will be run on it.
        tokenizer: knows how to pad; rows of one length need none.
        features: of the rows.

    Raises:
        DataError: if the model needs inputs of another kind besides.
    """
    if getattr(model.config, "add_cross_attention", False):
        raise DataError(
            "This model attends to another model's states, which data of one kind does not give. Pass batches with "
            "encoder_hidden_states or a callable that runs the model (Python), or convert by the weights alone with "
            "none."
        )
    if tokenizer is None or "pixel_values" in features[0]:
        batch = {name: torch.stack([torch.as_tensor(row[name]) for row in features]) for name in features[0]}
    else:
        batch = dict(tokenizer.pad(list(features), return_tensors="pt", verbose=False))
    if has_choices(model):
        return {name: value.unsqueeze(1) for name, value in batch.items()}  # one choice for each example
    return batch


def row_batches(model: PreTrainedModel, processor: Any | None, features: Sequence[Feature], rows: int) -> list[Batch]:
    """Batches of so many rows, those of like length together."""
    order = sorted(features, key=length_of)
    return [collate(model, processor, order[start : start + rows]) for start in range(0, len(order), rows)]


def length_of(feature: Feature) -> int:
    """Tokens of a row; 1 for an image."""
    return len(feature["input_ids"]) if "input_ids" in feature else 1


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


def tokens_in_batch(model: PreTrainedModel) -> int:
    """Tokens in a batch at most, unless one row alone has more.

    Below some 400 tokens a good part of a pass is overhead; above, little is gained. The graph of a token takes 13 to
    18 D numbers in every layer, whose weights are 12 D²: with 384 tokens that is about half the memory of a model like
    BERT, and less than the model read back that checks an export. From D = 1920 on it is D/5 tokens, with which a pass
    takes less memory than the moments do (4 D² a layer, of twice the size).
    """
    return max(_TOKENS, model.config.hidden_size // 5)


def batched(model: PreTrainedModel, processor: Any | None, features: Sequence[Feature]) -> list[Batch]:
    """Padded batches of rows of like length; images one at a time, because each is some hundred tokens.

    Args:
        model: that will be run on them.
        processor: its tokenizer, or image processor.
        features: of the rows.
    """
    lengths = [length_of(feature) for feature in features]
    images = model.main_input_name == "pixel_values"
    order = sorted(range(len(features)), key=lambda row: (lengths[row], row))
    batches, start, tokens = [], 0, tokens_in_batch(model)
    while start < len(order):
        stop = start + 1
        while not images and stop < len(order) and (stop + 1 - start) * lengths[order[stop]] <= tokens:
            stop += 1
        batches.append(collate(model, processor, [features[row] for row in order[start:stop]]))
        start = stop
    return batches
