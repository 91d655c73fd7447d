"""Sentence embeddings, as the model's folder says they are made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from ..data.features import collate, length_of, text_features
from ..errors import ExtraError
from ..loading import Loaded

_ROWS = 64


def embed(loaded: Loaded, sentences: Sequence[str], max_length: int | None = None) -> np.ndarray:
    """Embeddings of length one: by sentence-transformers where the folder is one of its models, else mean-pooled.

    Args:
        loaded: the model.
        sentences: what to embed.
        max_length: tokens at most, of models that sentence-transformers does not know.

    Returns:
        (N, D).

    Raises:
        ExtraError: if it is a sentence-transformers model and that is not installed.
    """
    if (loaded.source.folder / "modules.json").is_file():
        try:
            from sentence_transformers import SentenceTransformer
        except ImportError as error:
            raise ExtraError(
                f"{loaded.source.name} is a sentence-transformers model: pip install 'collab[demo]'."
            ) from error
        encoder = SentenceTransformer(str(loaded.source.folder), device=str(loaded.model.device))
        found: Any = encoder.encode(list(sentences), batch_size=_ROWS, normalize_embeddings=True)
        return np.asarray(found)
    features = text_features(loaded.model, loaded.tokenizer, sentences, max_length)
    order = sorted(range(len(features)), key=lambda row: length_of(features[row]))
    rows: list[np.ndarray] = []
    with torch.no_grad():
        for start in range(0, len(order), _ROWS):
            batch = collate(loaded.model, loaded.tokenizer, [features[row] for row in order[start : start + _ROWS]])
            batch = {name: value.to(loaded.model.device) for name, value in batch.items()}
            states = loaded.model.base_model(**batch).last_hidden_state.float()  # (B, T, D)
            mask = batch["attention_mask"].unsqueeze(-1)
            mean = (states * mask).sum(1) / mask.sum(1).clamp(min=1)
            rows.extend(torch.nn.functional.normalize(mean, dim=-1).cpu().numpy())
    return np.stack(rows)[np.argsort(order)]


def similarities(loaded: Loaded, pairs: Sequence[Sequence[str]], max_length: int | None = None) -> np.ndarray:
    """The cosine of each pair's embeddings, (N,)."""
    first, second = (embed(loaded, [pair[side] for pair in pairs], max_length) for side in (0, 1))
    return (first * second).sum(axis=1)
