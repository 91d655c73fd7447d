"""Attention maps: where the tokens of a sentence attend, by layer and head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..data.batches import Feature, collate, without_labels
from ..data.features import row_features
from ..errors import DataError
from ..io.checkpoint import Checkpoint
from ..models.inputs import has_choices, on_device
from ..models.layers import attention_layers
from ..models.recording import LayerPass
from .statistics import record_attention


@dataclass(frozen=True)
class AttentionMap:
    """Attention weights of the heads of a layer on one sentence.

    Attributes:
        layer: module name of the layer.
        heads: the heads, as numbers in the original.
        queries: T tokens that attend.
        keys: S tokens that they attend to; in cross-attention those that the encoder reads.
        weights: (H, T, S), every row of which adds up to 1.
    """

    layer: str
    heads: tuple[int, ...]
    queries: tuple[str, ...]
    keys: tuple[str, ...]
    weights: np.ndarray

    def cut(self, tokens: int) -> AttentionMap:
        """The map of the first so many queries and keys."""
        weights = self.weights[:, :tokens, :tokens]
        return AttentionMap(self.layer, self.heads, self.queries[:tokens], self.keys[:tokens], weights)


def sentence_features(checkpoint: Checkpoint, sentences: Sequence[str]) -> list[Feature]:
    """Tokenizes sentences; the decoder of an encoder-decoder reads the model's own answer to each.

    Raises:
        DataError: if a sentence is empty, or the model takes no text or has no tokenizer.
    """
    if any(not sentence.strip() for sentence in sentences):
        raise DataError("A sentence is empty, so there is no attention to draw. Give its text (--sentence).")
    _require_text(checkpoint)
    model, tokenizer = checkpoint.model, checkpoint.tokenizer
    return [row_features(model, tokenizer, [sentence])[0] for sentence in sentences]


def attention_maps(checkpoint: Checkpoint, feature: Feature) -> dict[str, AttentionMap]:
    """The attention maps of one tokenized sentence.

    Args:
        checkpoint: a model that takes text, with its tokenizer.
        feature: the sentence, from `sentence_features` or the features of `HeadRows`.

    Returns:
        By name of the layer, those with heads; of a layer that the model applies several times, its first pass.

    Raises:
        DataError: if the model takes no text or has no tokenizer.
    """
    _require_text(checkpoint)
    model, tokenizer = checkpoint.model, checkpoint.tokenizer
    batch = on_device(collate(model, tokenizer, without_labels([feature])), model)
    read, answered = (
        tuple(tokenizer.convert_ids_to_tokens(batch[name].flatten().tolist())) if name in batch else ()
        for name in ("input_ids", "decoder_input_ids")
    )
    passes: list[LayerPass] = []
    record_attention(model, attention_layers(model), batch, passes.append)
    maps = {}
    for each in reversed(passes):  # of a shared layer the first
        layer = each.layer
        queries = answered if answered and layer.kind != "encoder" else read
        keys = read if layer.kind == "cross" else queries
        weights = each.weights[0].float().cpu().numpy()  # (H, T, S)
        maps[layer.name] = AttentionMap(layer.name, layer.heads, queries, keys, weights)
    return maps


def _require_text(checkpoint: Checkpoint) -> None:
    if checkpoint.model.main_input_name != "input_ids":
        raise DataError("Attention maps are drawn for models that take text.")
    if has_choices(checkpoint.model):
        raise DataError("Attention maps are drawn of single texts, and this model chooses among several.")
