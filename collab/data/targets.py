"""Inputs of an encoder-decoder's decoder: targets that go with the sources, or the model's own outputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..errors import DataError
from ..models.inputs import decoder_inputs, decoder_vocabulary, longest_target, on_device
from ..models.states import evaluating

_LONGEST = 128  # tokens of an output at most


def divided(rows: Sequence[Any]) -> tuple[list[str], list[str] | None]:
    """The sources and the targets of rows of text; None where the rows are sources alone.

    Raises:
        DataError: if some rows have a target and others have none.
    """
    pairs = [(row, None) if isinstance(row, str) else (*row, None)[:2] for row in rows]
    sources = [source for source, _ in pairs]
    targets = [target for _, target in pairs if isinstance(target, str) and target.strip()]
    if targets and len(targets) < len(rows):
        number = next(place for place, (_, target) in enumerate(pairs) if not target or not target.strip())
        raise DataError(
            f"The row {number + 1} has a source without a target: {str(sources[number])[:60]!r}. Give every source a "
            "target, or none, to let the model answer them itself."
        )
    return sources, targets or None


def target_features(
    model: PreTrainedModel, tokenizer: Any, targets: Sequence[str], max_length: int | None
) -> list[dict[str, list[int]]]:
    """The tokens of the targets as ``labels``, and what a decoder reads to write them, one entry for each.

    Args:
        model: the model to run on them.
        tokenizer: its tokenizer.
        targets: strings.
        max_length: tokens of a target at most; None for as many as the decoder takes, which is also the limit.

    Raises:
        DataError: if the tokenizer does not encode targets, or its tokens are not those of the decoder.
    """
    if getattr(tokenizer, "tgt_lang", "") is None:
        raise DataError(
            "The tokenizer encodes no targets: it has no target language. Set tgt_lang in tokenizer_config.json, or "
            "tokenizer.tgt_lang, or give sources alone."
        )
    limit = longest_target(model)
    length = min(max_length or limit, limit)
    try:
        encoded = tokenizer(text_target=list(targets), truncation=True, max_length=length, verbose=False)["input_ids"]
    except TypeError as error:
        raise DataError(
            "The tokenizer encodes no targets: it does not take text_target. Give sources alone, or batches with "
            "decoder_input_ids (Python)."
        ) from error
    known = decoder_vocabulary(model)
    largest = max((max(ids, default=0) for ids in encoded), default=0)
    if largest >= known:
        raise DataError(
            f"The tokenizer makes a token {largest} of a target, but the decoder's vocabulary ends at {known - 1}. "
            "They do not belong together."
        )
    read = (target_feature(decoder_inputs(model, torch.tensor([ids]))[0]) for ids in encoded)
    return [feature | {"labels": ids} for feature, ids in zip(read, encoded, strict=True)]


def own_targets(model: PreTrainedModel, batch: dict[str, Tensor]) -> list[dict[str, list[int]]]:
    """Inputs of the decoder while the model wrote outputs for a batch greedily, one entry for each row.

    Raises:
        DataError: if the model has no head to write with.
    """
    if not model.can_generate():
        raise DataError(
            f"{type(model).__name__} has no head to answer with, so its decoder needs targets: give two columns of "
            "text, the source and the target."
        )
    generator: Any = model  # a model class and a `GenerationMixin`
    config = generator.generation_config
    with evaluating(model), torch.no_grad():
        written = generator.generate(
            **on_device(batch, model.device),
            do_sample=False,
            num_beams=1,
            max_length=min(_LONGEST, longest_target(model)),
        )
    start = config.decoder_start_token_id
    start = model.config.decoder_start_token_id if start is None else start
    ends = config.eos_token_id if isinstance(config.eos_token_id, list) else [config.eos_token_id]
    read = []
    for row in written.tolist():
        ids = row if start is None or row[:1] == [start] else [start, *row]
        stop = next((place for place, token in enumerate(ids) if place and token in ends), len(ids))
        read.append(target_feature(torch.tensor(ids[:stop])))
    return read


def target_feature(ids: Tensor) -> dict[str, list[int]]:
    """The entries of a row for its decoder, which reads `ids`, (T,)."""
    return {"decoder_input_ids": ids.tolist(), "decoder_attention_mask": [1] * len(ids)}
