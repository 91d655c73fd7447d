"""Figures of heads: scores, likeness, sharing and attention maps."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..heads.maps import AttentionMap, attention_maps, sentence_features
from ..heads.options import SCORES
from ..heads.scores import HeadScores, rank_correlation
from ..io.checkpoint import Checkpoint
from ..models.layers import attention_layers, check_numbers
from .style import BLUE, GREY, VERMILION, pyplot, save

logger = logging.getLogger(__name__)

TOKENS = 32
"""Tokens of a sentence that an attention map shows at most; more would be illegible."""

_MAP = "cividis"  # readable without telling red from green


def draw_scores(scores: HeadScores, folder: Path) -> list[Path]:
    """Draws all figures of a model's scores.

    Args:
        scores: scores of a model's heads.
        folder: folder to write into; created if it does not exist.

    Returns:
        The files.

    Raises:
        ExtraError: if matplotlib is not installed.
        OutputError: if a file cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written = [_heat_maps(scores, folder / "scores.png")]
    if len(scores.scores) > 1:
        written.append(_correlations(scores, folder / "correlations.png"))
    if "ablation" in scores.scores or "alone" in scores.scores:
        written.append(_histograms(scores, folder / "ablation.png"))
    for kind, matrices in scores.likeness.items():
        label = {"weights": "cosine of query-key products", "maps": "mean cosine of attention weights"}[kind]
        written.append(_matrices(matrices, scores.heads, label, folder / f"like-{kind}.png"))
    if scores.sharing:
        written.append(_sharing(scores, folder / "sharing.png"))
    return written


def draw_comparison(first: HeadScores, second: HeadScores, folder: Path, names: tuple[str, str]) -> Path:
    """Draws every score on one data set against the same score on another.

    Args:
        first: scores on the first data set.
        second: scores on the second.
        folder: folder to write into.
        names: names of the data sets.

    Returns:
        The file.
    """
    figure, axes = _grid(len(first.scores), (3.2, 3.0))
    for axis, name in zip(axes, first.scores, strict=False):
        axis.scatter(first.grid(name).ravel(), second.grid(name).ravel(), s=14, color=BLUE, alpha=0.7, linewidths=0)
        correlation = rank_correlation(first.importance(name), second.importance(name))
        axis.set_title(f"{name}, rank correlation {correlation:.2f}")
        axis.set_xlabel(names[0], parse_math=False)
        axis.set_ylabel(names[1], parse_math=False)
        axis.title.set_fontsize(9)
        axis.tick_params(labelsize=7)
    folder.mkdir(parents=True, exist_ok=True)
    save(figure, folder / "two-data-sets.png", 300)
    return folder / "two-data-sets.png"


def draw_attention(
    loaded: Checkpoint, sentences: Sequence[str], folder: Path, layers: Sequence[int] | None = None
) -> list[Path]:
    """Draws attention maps with their tokens: one file per sentence and layer, with all heads of the layer.

    The decoder of an encoder-decoder reads the model's own answer to the sentence.

    Args:
        loaded: a model that takes text.
        sentences: sentences to draw; maps of more than `TOKENS` tokens are cropped, with a warning.
        folder: folder to write into.
        layers: numbers of the layers to draw; None for all.

    Returns:
        The files.

    Raises:
        ConfigurationError: if there is no such layer.
        DataError: if the model has no tokenizer.
    """
    layers_of_model = attention_layers(loaded.model)
    numbers = range(len(layers_of_model)) if layers is None else layers
    check_numbers(layers_of_model, numbers)
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for place, feature in enumerate(sentence_features(loaded, sentences)):
        maps = attention_maps(loaded, feature)
        longest = max((max(len(each.queries), len(each.keys)) for each in maps.values()), default=0)
        if longest > TOKENS:
            logger.warning("Sentence %d has %d tokens; its maps show the first %d.", place + 1, longest, TOKENS)
        for number in numbers:
            name = layers_of_model[number].name
            if name in maps:
                file = folder / f"attention-{place + 1}-layer-{number}.png"
                _attention(maps[name].cut(TOKENS), file)
                written.append(file)
    return written


def _attention(attention: AttentionMap, file: Path) -> None:
    queries, keys = attention.queries, attention.keys
    width, height = (max(1.8, 0.13 * len(tokens) + 0.9) for tokens in (keys, queries))
    figure, axes = _grid(len(attention.heads), (width, height))
    for axis, head, weights in zip(axes, attention.heads, attention.weights, strict=False):
        axis.imshow(weights, cmap=_MAP, vmin=0, vmax=1)
        axis.set_title(f"head {head}", fontsize=8)
        axis.set_xticks(range(len(keys)), keys, rotation=90, fontsize=5, parse_math=False)
        axis.set_yticks(range(len(queries)), queries, fontsize=5, parse_math=False)
        axis.tick_params(length=0)
    figure.suptitle(f"{attention.layer}: rows attend to columns; dark 0, light 1", fontsize=9)
    save(figure, file, 300)


def _heat_maps(scores: HeadScores, file: Path) -> Path:
    width = max(2.6, 0.2 * scores.total + 1.2)
    figure, axes = _grid(len(scores.scores), (width, max(1.9, 0.2 * len(scores.layers) + 1.0)))
    for axis, name in zip(axes, scores.scores, strict=False):
        image = axis.imshow(np.ma.masked_invalid(scores.grid(name)), cmap=_MAP, aspect="auto")
        axis.set_facecolor("white")
        for row, layer in enumerate(scores.layers):
            pruned = sorted(set(range(scores.totals[layer])) - set(scores.heads[layer]))
            lowest = [row - 0.5] * len(pruned)
            axis.bar(pruned, 1.0, 1.0, lowest, hatch="//////", fill=False, edgecolor=GREY, linewidth=0)
        axis.set(xlabel="head", ylabel="layer")
        axis.set_title(_title(scores, name), fontsize=8)
        axis.set_xticks(range(scores.total))
        axis.set_yticks(range(len(scores.layers)))
        axis.tick_params(labelsize=6)
        figure.colorbar(image, ax=axis).ax.tick_params(labelsize=6)
    save(figure, file, 300)
    return file


def _title(scores: HeadScores, name: str) -> str:
    return f"{name} ({scores.degradation_name})" if name in ("ablation", "alone") else name


def _correlations(scores: HeadScores, file: Path) -> Path:
    plt = pyplot()
    names = list(scores.scores)
    correlations = scores.correlations()
    values = np.array([[correlations[row][column] for column in names] for row in names])
    figure, axis = plt.subplots(figsize=(0.55 * len(names) + 2.4, 0.5 * len(names) + 1.8), layout="constrained")
    axis.imshow(values, cmap="PuOr", vmin=-1, vmax=1)
    for row, column in np.ndindex(*values.shape):
        dark = abs(values[row, column]) > 0.6
        text = "" if np.isnan(values[row, column]) else f"{values[row, column]:.2f}"
        axis.text(column, row, text, ha="center", va="center", fontsize=6, color="white" if dark else "black")
    axis.set_xticks(range(len(names)), names, rotation=45, ha="right", fontsize=7)
    axis.set_yticks(range(len(names)), names, fontsize=7)
    axis.set_title(
        "Rank correlation of scores over the heads,\nsigns chosen so that higher means more important", fontsize=8
    )
    save(figure, file, 300)
    return file


def _histograms(scores: HeadScores, file: Path) -> Path:
    names = [name for name in ("ablation", "alone") if name in scores.scores]
    figure, axes = _grid(len(names), (4.0, 2.8))
    for axis, name in zip(axes, names, strict=False):
        values = scores.grid(name)
        values = values[~np.isnan(values)]
        axis.hist(values, bins=24, color=BLUE)
        axis.axvline(0, color=VERMILION, linewidth=1)
        axis.set(xlabel=scores.degradation_name, ylabel="heads")
        axis.set_title(SCORES[name][1], fontsize=9)
    save(figure, file, 300)
    return file


def _matrices(
    matrices: Mapping[str, list[list[float]]], heads: Mapping[str, tuple[int, ...]], label: str, file: Path
) -> Path:
    figure, axes = _grid(len(matrices), (2.6, 2.4))
    image = None
    for axis, (name, matrix) in zip(axes, matrices.items(), strict=False):
        image = axis.imshow(np.array(matrix), cmap="PuOr", vmin=-1, vmax=1)
        axis.set_title(name, fontsize=6)
        axis.set_xticks(range(len(heads[name])), heads[name], fontsize=5)
        axis.set_yticks(range(len(heads[name])), heads[name], fontsize=5)
    if image is not None:
        figure.colorbar(image, ax=list(axes), shrink=0.7, label=label)
    save(figure, file, 300)
    return file


def _sharing(scores: HeadScores, file: Path) -> Path:
    """Sorts the shared dimensions by the head that uses them most, so that sharing shows beside the diagonal."""
    figure, axes = _grid(len(scores.sharing), (4.4, 1.9), columns=2)
    for axis, (name, rows) in zip(axes, scores.sharing.items(), strict=False):
        values = np.array(rows)
        values = values / np.maximum(values.max(axis=0, keepdims=True), 1e-30)
        order = np.lexsort((-values.sum(axis=0), values.argmax(axis=0)))
        axis.imshow(values[:, order], cmap=_MAP, vmin=0, vmax=1, aspect="auto", interpolation="nearest")
        axis.set_title(name, fontsize=7)
        axis.set(xlabel="shared dimension", ylabel="head")
        axis.set_yticks(range(len(values)), scores.heads[name], fontsize=5)
        axis.tick_params(axis="x", labelsize=6)
    figure.suptitle("Use of each shared dimension, its largest user 1", fontsize=9)
    save(figure, file, 300)
    return file


def _grid(count: int, size: tuple[float, float], columns: int = 4) -> tuple[Any, Any]:
    """A figure with `count` axes; the rest of the grid is hidden."""
    columns = min(columns, count)
    rows = math.ceil(count / columns)
    figure, axes = pyplot().subplots(
        rows, columns, figsize=(size[0] * columns, size[1] * rows), layout="constrained", squeeze=False
    )
    for axis in axes.ravel()[count:]:
        axis.set_visible(False)
    return figure, axes.ravel()[:count]
