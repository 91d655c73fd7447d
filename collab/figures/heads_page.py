"""The page of a model's heads: attention, scores, and what was pruned; alone or beside its original."""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..data.batches import Feature
from ..errors import ConfigurationError
from ..heads.maps import AttentionMap, attention_maps
from ..heads.options import SCORES
from ..heads.scores import HeadScores
from ..io.checkpoint import Checkpoint
from ..models.layers import attention_layers, dropped_layers
from ..steps.step import display_names
from .pages import write_page

SENTENCES = 8
"""Sentences on a page at most."""
TOKENS = 48
"""Tokens of a sentence on a page at most: two models of 24 layers of 16 heads then take 19 MB of weights in 8 bits."""

_LABEL = 80


@dataclass(frozen=True)
class ShownModel:
    """A model on the page.

    Attributes:
        checkpoint: the model, with its tokenizer.
        scores: the scores of its heads.
        features: the sentences, tokenized for it.
    """

    checkpoint: Checkpoint
    scores: HeadScores
    features: Sequence[Feature]


def write_heads_page(file: Path, model: ShownModel, against: ShownModel | None = None) -> None:
    """Writes a page with the attention and the scores of a model's heads, alone or beside its original's.

    Args:
        file: the .html file; replaced if it exists.
        model: the model.
        against: its original, with the same sentences.

    Raises:
        ConfigurationError: if the other model has not the layers and heads that the model comes from.
        DataError: if a model takes no text or has no tokenizer.
        OutputError: if the file cannot be written.
    """
    models = [model] if against is None else [against, model]
    layouts = [_layout(each) for each in models]
    _check_alike(models, layouts)
    layers = max(layouts, key=len)
    names = next(layout for layout in layouts if None not in layout or layout is layers)
    notes = [f"Scores were computed on {model.scores.data['source']}."]
    if len(model.features) > SENTENCES:
        notes.append(f"The first {SENTENCES} of {len(model.features)} sentences are shown.")
    shown = []
    longest = 0
    for each, layout in zip(models, layouts, strict=True):
        maps = [attention_maps(each.checkpoint, feature) for feature in each.features[:SENTENCES]]
        longest = max([longest, *(max(len(one.queries), len(one.keys)) for by in maps for one in by.values())])
        title = display_names([each.checkpoint.name])[0]
        shown.append(_model(each, f"{title} (original)" if each is against else title, layout, maps))
    if longest > TOKENS:
        notes.append(f"Of longer sentences the first {TOKENS} tokens are shown; the longest has {longest}.")
    data = {
        "layers": [name or "" for name in names],
        "heads": model.scores.total,
        "sentences": [_label(model.checkpoint, feature) for feature in model.features[:SENTENCES]],
        "scores": {name: {"sign": SCORES[name][0], "meaning": _meaning(model.scores, name)} for name in _names(models)},
        "models": shown,
    }
    write_page(file, "heads", title=display_names([model.checkpoint.name])[0], notes=notes, data=data)


def _layout(model: ShownModel) -> list[str | None]:
    """The names of the layers in the original's order, None where one was dropped."""
    dropped = dropped_layers(model.checkpoint.model)
    kinds = [layer.kind for layer in attention_layers(model.checkpoint.model)]
    names = list(model.scores.layers)
    decoder = kinds.index("decoder") if "cross" in kinds and "encoder" in kinds else len(names)
    each = 2 if decoder < len(names) else 1  # of a decoder's layer, attention to the sequence itself and to another
    return [
        *_with_gaps([[name] for name in names[:decoder]], dropped.layers, 1),
        *_with_gaps([names[place : place + each] for place in range(decoder, len(names), each)], dropped.decoder, each),
    ]


def _with_gaps(layers: Sequence[list[str]], dropped: Sequence[int], each: int) -> list[str | None]:
    """The names in the layers that are there, with `each` times None for every number of one that is not."""
    rest = iter(layers)
    count = len(layers) + len(dropped)
    return [name for number in range(count) for name in ([None] * each if number in dropped else next(rest))]


def _check_alike(models: Sequence[ShownModel], layouts: Sequence[Sequence[str | None]]) -> None:
    shapes = [(len(layout), model.scores.total) for layout, model in zip(layouts, models, strict=True)]
    if len(set(shapes)) > 1:
        (layers, heads), (own_layers, own_heads) = shapes
        raise ConfigurationError(
            f"{models[0].checkpoint.name} has {layers} attention layers of {heads} heads, and the original of "
            f"{models[1].checkpoint.name} had {own_layers} of {own_heads}. Compare it with its original (--against)."
        )


def _model(
    model: ShownModel, title: str, layout: Sequence[str | None], maps: Sequence[dict[str, AttentionMap]]
) -> dict[str, Any]:
    """A model as the script of the page reads it; lists of layers have null where one was dropped."""
    scores = model.scores
    return {
        "title": title,
        "name": model.checkpoint.name,
        "heads": [None if name is None else list(scores.heads[name]) for name in layout],
        "totals": [None if name is None else scores.totals[name] for name in layout],
        "scores": {
            score: [None if name is None else [_finite(value) for value in values[name]] for name in layout]
            for score, values in scores.scores.items()
        },
        "maps": [[_packed(by[name]) if name in by else None for name in layout] for by in maps],
    }


def _packed(attention: AttentionMap) -> dict[str, Any]:
    """Weights in 255ths, (H, T, S), in base64."""
    cut = attention.cut(TOKENS)
    weights = np.rint(255 * cut.weights).astype(np.uint8)
    return {
        "queries": cut.queries,
        "keys": cut.keys,
        "weights": base64.b64encode(np.ascontiguousarray(weights).tobytes()).decode(),
    }


def _names(models: Sequence[ShownModel]) -> list[str]:
    return [name for name in SCORES if any(name in model.scores.scores for model in models)]


def _meaning(scores: HeadScores, name: str) -> str:
    degradation = f" ({scores.degradation_name})" if name in ("ablation", "alone") else ""
    return SCORES[name][1] + degradation


def _finite(value: float) -> float:
    return value if math.isfinite(value) else 0.0


def _label(checkpoint: Checkpoint, feature: Feature) -> str:
    text = checkpoint.tokenizer.decode(feature["input_ids"], skip_special_tokens=True).strip()
    return f"{text[: _LABEL - 1]}…" if len(text) > _LABEL else text
