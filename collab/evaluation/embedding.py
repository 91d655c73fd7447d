"""Sentence embeddings, pooled as configured in the model's folder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel

from ..data.batches import Batch, collate, tokens_of_pass, within_tokens
from ..data.features import text_features
from ..errors import DataError, ExtraError
from ..graphs.served import session_of
from ..io.checkpoint import Checkpoint
from ..io.read import read_json, read_object
from ..io.sentence import has_own_transformer, sentence_settings
from ..models.inputs import has_decoder, longest_text, on_device
from ..models.padding import seen_tokens
from ..models.states import evaluating

_ROWS = 64
_ENDLESS = 10**9  # tokens; what a tokenizer without a limit says is more


class Embedder:
    """Normalized embeddings: by sentence-transformers if the folder is one of its models, else mean-pooled.

    Args:
        loaded: the model; changes to it since it was loaded apply.
        max_length: tokens of a row at most; None for as many as the model, or sentence-transformers, takes.

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
            if max_length is not None:
                self._encoder.max_seq_length = min(max_length, self._encoder.max_seq_length or max_length)

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
        batch = on_device(batch, model)
        states = model.base_model(**batch).last_hidden_state  # (B, T, D)
        return mean_embedding(states, batch["attention_mask"])

    def embed(self, sentences: Sequence[str]) -> np.ndarray:
        """Embeds any number of sentences in batches, (N, D), without gradients."""
        model = self._loaded.model
        features = text_features(model, self._loaded.tokenizer, sentences, self._max_length)  # for their lengths
        parts = list(within_tokens(features, tokens_of_pass(model), _ROWS))
        with torch.no_grad(), evaluating(model):
            embeddings = [self([sentences[row] for row in part]).cpu().numpy() for part in parts]
        return np.concatenate(embeddings)[np.argsort([row for part in parts for row in part])]

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
    assert loaded.folder is not None
    if session_of(loaded.model) is not None or has_own_transformer(loaded.folder):
        return _pooled(loaded)
    encoder = SentenceTransformer(str(loaded.folder), device=str(loaded.model.device))
    transformer = encoder[0]
    for name, child in transformer.named_children():
        if isinstance(child, PreTrainedModel):
            setattr(transformer, name, loaded.model)
    with evaluating(loaded.model):  # which is left in its mode
        return encoder.eval()


class _States(nn.Module):
    """A model as the first module of a sentence-transformers model, whose others work on its states.

    It serves graphs, and models whose own first module is code in their folder, which is not run.

    Attributes:
        max_seq_length: tokens of a row at most, at first as the folder says, and never more than the model takes.
    """

    def __init__(self, loaded: Checkpoint, others: Sequence[nn.Module]) -> None:
        super().__init__()
        self._loaded = loaded
        self._others = nn.ModuleList(others)
        assert loaded.folder is not None
        settings = sentence_settings(loaded.folder)
        limit = None if settings is None else read_object(settings).get("max_seq_length")
        self.max_seq_length = limit or loaded.tokenizer.model_max_length

    def preprocess(self, sentences: Sequence[str]) -> Batch:
        """Tokenizes sentences."""
        model, tokenizer = self._loaded.model, self._loaded.tokenizer
        # As sentence-transformers does, up to what the tokenizer says, where positions have no limit.
        limited = getattr(model.config, "max_position_embeddings", None) is not None
        length = longest_text(model, self.max_seq_length) if limited else self.max_seq_length
        cut = {"truncation": True, "max_length": length} if length < _ENDLESS else {}
        encoded = tokenizer(list(sentences), verbose=False, **cut)
        rows = [{name: encoded[name][row] for name in encoded} for row in range(len(sentences))]
        return collate(model, tokenizer, rows)

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """``sentence_embedding`` of a batch."""
        values = {**batch, "token_embeddings": self._loaded.model(**batch).last_hidden_state}
        for module in self._others:
            values = module(values)
        return values


def _pooled(loaded: Checkpoint) -> Any:
    """A model, or a graph, with the modules of sentence-transformers that the folder names after it."""
    from sentence_transformers.sentence_transformer import modules

    assert loaded.folder is not None
    others = []
    for entry in read_json(loaded.folder / "modules.json")[1:]:
        kind = getattr(modules, str(entry["type"]).rpartition(".")[2], None)
        if kind is None:
            raise DataError(f"{loaded.name} has a module {entry['type']} after the model, which collab does not run.")
        others.append(kind.load(str(loaded.folder / entry["path"])))
    return _States(loaded, others).to(loaded.model.device).eval()
