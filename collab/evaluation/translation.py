"""Texts that an encoder-decoder writes, and their BLEU (Papineni et al. 2002) as sacrebleu computes it."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from ..data.batches import by_length, collate
from ..data.features import encoder_features
from ..errors import DataError, ExtraError
from ..models.inputs import longest_target, on_device
from ..models.states import evaluating, writing_by
from ..progress import Progress, no_progress

NGRAMS = "ngrams"
"""Name of the column of predictions that BLEU is computed from; see `ngrams`."""

_ROWS = 32


def written_ngrams(
    model: PreTrainedModel,
    tokenizer: Any,
    pairs: Sequence[Sequence[str]],
    max_length: int | None = None,
    progress: Progress = no_progress,
) -> dict[str, np.ndarray]:
    """The sums that `bleu` is computed from, for the texts that a model writes for sources.

    Args:
        model: an encoder-decoder, which searches as its generation config says, without sampling.
        tokenizer: its tokenizer.
        pairs: sources and their targets.
        max_length: tokens of a text at most; None for as many as the model takes.
        progress: progress callback, called after every batch.

    Returns:
        A column named `NGRAMS`, (N, 10).

    Raises:
        DataError: if the model has no head to write with.
        ExtraError: if sacrebleu is not installed.
    """
    require_sacrebleu()
    texts = translations(model, tokenizer, [source for source, _ in pairs], max_length, progress)
    return {NGRAMS: ngrams(texts, [target for _, target in pairs])}


def require_sacrebleu() -> None:
    """Raises an ExtraError if sacrebleu is not installed."""
    if importlib.util.find_spec("sacrebleu") is None:
        raise ExtraError("BLEU needs sacrebleu: pip install 'collab[train]'.")


def ngrams(texts: Sequence[str], targets: Sequence[str]) -> np.ndarray:
    """The counts that BLEU sums up, (N, 10): matching n-grams and all n-grams, n = 1 to 4, and words of both texts."""
    from sacrebleu.metrics import BLEU

    metric = BLEU(effective_order=True)  # of a sentence; the counts are the same without
    scores = [metric.sentence_score(text, [target]) for text, target in zip(texts, targets, strict=True)]
    return np.array([[*score.counts, *score.totals, score.sys_len, score.ref_len] for score in scores])


def bleu(sums: np.ndarray) -> float:
    """BLEU from 0 to 100 of the sums of `ngrams`, (10,), with sacrebleu's words (13a) and smoothing (exp)."""
    from sacrebleu.metrics import BLEU

    *counts, words, expected = (int(count) for count in sums)
    return float(BLEU.compute_bleu(counts[:4], counts[4:], words, expected, smooth_method="exp").score)


def translations(
    model: PreTrainedModel,
    tokenizer: Any,
    sources: Sequence[str],
    max_length: int | None = None,
    progress: Progress = no_progress,
) -> list[str]:
    """The texts that a model writes for sources; other arguments and errors as in `written_ngrams`."""
    if not model.can_generate():
        raise DataError(f"{type(model).__name__} has no head to write with.")
    generator: Any = model  # a model class and a `GenerationMixin`
    longest = min(max_length or longest_target(model), longest_target(model))
    features = encoder_features(model, tokenizer, sources, max_length)
    texts = [""] * len(features)
    done = 0
    progress("translating", done, len(features))
    with evaluating(model), torch.no_grad(), writing_by(model, longest) as settings:
        for numbers in by_length(features, _ROWS):
            batch = collate(model, tokenizer, [features[number] for number in numbers])
            ids = generator.generate(**on_device(batch, model), generation_config=settings)
            for number, text in zip(numbers, tokenizer.batch_decode(ids, skip_special_tokens=True), strict=True):
                texts[number] = text
            done += len(numbers)
            progress("translating", done, len(features))
    return texts
