"""A model's head, and which files and tags of the folder that it came from still fit it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from transformers import PreTrainedModel

from .read import read_config, read_json, read_modules, read_object


class Head(NamedTuple):
    """A head on top of a base model.

    Attributes:
        pipeline_tag: its task on the Hub.
        auto_class: the Auto class that loads a model with it.
    """

    pipeline_tag: str
    auto_class: str


class Pooling(NamedTuple):
    """How an embedder of sentence-transformers makes one vector of the states of a row.

    Attributes:
        folder: folder of its pooling, within the model's.
        mean: whether it is the mean over the tokens that are no padding, and nothing else.
        first: whether the states of the first token are in it.
        normalized: whether vectors are scaled to unit length.
    """

    folder: str
    mean: bool
    first: bool
    normalized: bool


_HEADS = {
    "ForSequenceClassification": Head("text-classification", "AutoModelForSequenceClassification"),
    "ForTokenClassification": Head("token-classification", "AutoModelForTokenClassification"),
    "ForQuestionAnswering": Head("question-answering", "AutoModelForQuestionAnswering"),
    "ForMultipleChoice": Head("multiple-choice", "AutoModelForMultipleChoice"),
    "ForMaskedLM": Head("fill-mask", "AutoModelForMaskedLM"),
    "ForImageClassification": Head("image-classification", "AutoModelForImageClassification"),
}
_EMBEDDER_TAGS = ("sentence-transformers", "sentence-similarity", "feature-extraction")


def head_of(model: PreTrainedModel) -> Head | None:
    """The head of a model; None for a base model, or a head that stands in no list here."""
    name = type(model).__name__
    return next((head for ending, head in _HEADS.items() if name.endswith(ending)), None)


def has_new_head(model: PreTrainedModel, source: Path | None) -> bool:
    """Whether a model has another head than the one in the folder that it was read from."""
    if source is None:
        return False
    named = read_config(source).get("architectures") or []
    return bool(named) and _native_name(named[0]) != _native_name(type(model).__name__)


def is_embedder(model: PreTrainedModel, source: Path | None) -> bool:
    """Whether a model is what the sentence-transformers files in a folder say: one whose outputs are pooled."""
    if source is None or not read_modules(source):
        return False
    if has_new_head(model, source):
        return False
    kinds = [str(entry.get("type", "")) for entry in read_json(source / "modules.json")]
    head = head_of(model)
    # Logits are not pooled; those over the vocabulary are, into sparse embeddings.
    return head is None or head.pipeline_tag == "fill-mask" or not any(kind.endswith("Pooling") for kind in kinds)


def pooling_of(model: PreTrainedModel, source: Path | None) -> Pooling | None:
    """How the states of an embedder are pooled; None for other models."""
    if source is None or not is_embedder(model, source):
        return None
    entries = read_json(source / "modules.json")
    paths = {entry.get("type", "").rpartition(".")[2]: entry.get("path", "") for entry in entries}
    if "Pooling" not in paths:
        return None
    path = source / paths["Pooling"] / "config.json"
    settings = read_object(path) if path.is_file() else {}
    modes = {name for name, value in settings.items() if name.startswith("pooling_mode_") and value is True}
    alone = set(paths) <= {"Transformer", "Pooling", "Normalize"}
    mean = alone and (modes == {"pooling_mode_mean_tokens"} or settings.get("pooling_mode") == "mean")
    first = "pooling_mode_cls_token" in modes or settings.get("pooling_mode") == "cls"
    return Pooling(paths["Pooling"], mean, first, "Normalize" in paths)


def pools_first_token(model: PreTrainedModel, source: Path | None) -> bool:
    """Whether a classifier, or sentence-transformers, makes a model's answers of the states of its first token.

    Args:
        model: the model.
        source: the folder that it was read from; None for none.
    """
    head = head_of(model)
    if head is not None and head.pipeline_tag in ("text-classification", "image-classification"):
        return getattr(model.config, "classifier_pooling", "cls") == "cls"
    pooling = pooling_of(model, source)
    return pooling is not None and pooling.first


def fitting(metadata: Mapping[str, Any], model: PreTrainedModel, source: Path | None) -> dict[str, Any]:
    """The header of the card in a folder without what does not fit a model that was made of the one there.

    Args:
        metadata: the header.
        model: the model.
        source: the folder; None for none.
    """
    fits, head = dict(metadata), head_of(model)
    stale = has_new_head(model, source)
    if not is_embedder(model, source) and (stale or head is not None):
        if stale or fits.get("pipeline_tag") in _EMBEDDER_TAGS:
            fits.pop("pipeline_tag", None)
            if head is not None:
                fits["pipeline_tag"] = head.pipeline_tag
        gone = {*_EMBEDDER_TAGS, *([metadata["pipeline_tag"]] if stale and "pipeline_tag" in metadata else [])}
        if "tags" in fits:
            fits["tags"] = [tag for tag in fits["tags"] if tag not in gone]
        if fits.get("library_name") == "sentence-transformers":
            fits["library_name"] = "transformers"
    return fits


def _native_name(name: str) -> str:
    return name.removeprefix("Collab")
