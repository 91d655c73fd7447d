"""Sentence embeddings, pooled as configured in the model's folder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedModel

from ..data.features import collate, text_features
from ..errors import DataError, ExtraError
from ..io.checkpoint import Checkpoint
from ..models.inputs import has_decoder, on_device
from ..models.padding import seen_tokens

_ROWS = 64


class Embedder:
    """Normalized embeddings: by sentence-transformers if the folder is one of its models, else mean-pooled.

    Args:
        loaded: the model; changes to it since it was loaded apply.
        max_length: tokens of a row at most, if sentence-transformers does not embed.

    Raises:
        DataError: if it is an encoder-decoder.
        ExtraError: if it needs sentence-transformers, which is not installed.
    """

    def __init__(self, loaded: Checkpoint, max_length: int | None = None) -> None:
        if has_decoder(loaded.model):
            raise DataError(
                f"{loaded.name} is an encoder-decoder, whose sentence embeddings are not defined. Give a "
                "model that is an encoder alone."
            )
        self._loaded = loaded
        self._max_length = max_length
        self._encoder = None
        if loaded.folder is not None and (loaded.folder / "modules.json").is_file():
            self._encoder = _encoder(loaded)

    def __call__(self, sentences: Sequence[str]) -> Tensor:
        """Embeds a batch of sentences, (B, D), differentiably."""
        model = self._loaded.model
        if self._encoder is not None:
            batch = self._encoder.preprocess(list(sentences))
            batch = {
                name: value.to(model.device) if isinstance(value, Tensor) else value for name, value in batch.items()
            }
            return functional.normalize(self._encoder(batch)["sentence_embedding"].float(), dim=-1)
        features = text_features(model, self._loaded.tokenizer, sentences, self._max_length)
        batch = collate(model, self._loaded.tokenizer, features)
        batch = on_device(batch, model.device)
        states = model.base_model(**batch).last_hidden_state  # (B, T, D)
        return mean_embedding(states, batch["attention_mask"])

    def embed(self, sentences: Sequence[str]) -> np.ndarray:
        """Embeds any number of sentences in batches, (N, D), without gradients."""
        order = sorted(range(len(sentences)), key=lambda row: len(sentences[row]))
        rows: list[np.ndarray] = []
        with torch.no_grad():
            for start in range(0, len(order), _ROWS):
                rows.extend(self([sentences[row] for row in order[start : start + _ROWS]]).cpu().numpy())
        return np.stack(rows)[np.argsort(order)]

    def similarities(self, pairs: Sequence[Sequence[str]]) -> np.ndarray:
        """Cosine of the embeddings of each pair, (N,)."""
        first, second = (self.embed([pair[side] for pair in pairs]) for side in (0, 1))
        return (first * second).sum(axis=1)


def mean_embedding(states: Tensor, mask: Tensor | None) -> Tensor:
    """Normalized mean over the tokens that are not padding: (B, T, D) → (B, D)."""
    seen = seen_tokens(mask, states)
    weight = states.new_ones(states.shape[:2]) if seen is None else seen.to(states)
    mean = (states * weight.unsqueeze(-1)).sum(1) / weight.sum(1, keepdim=True).clamp(min=1)
    return functional.normalize(mean.float(), dim=-1)


def _encoder(loaded: Checkpoint) -> Any:
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError as error:
        raise ExtraError(f"{loaded.name} is a sentence-transformers model: pip install 'collab[demo]'.") from error
    encoder = SentenceTransformer(str(loaded.folder), device=str(loaded.model.device))
    transformer = encoder[0]
    for name, child in transformer.named_children():
        if isinstance(child, PreTrainedModel):
            setattr(transformer, name, loaded.model)
    return encoder.eval()
