"""A model's predictions for the rows of a task, as columns for `metrics`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedModel

from ..data.batches import Feature, tokens_of_pass, within_tokens
from ..data.encoding import IGNORED, Collate, names_of
from ..errors import ExtraError
from ..models.inputs import on_device
from ..models.sharded import is_sharded
from ..models.states import evaluating
from ..processes import divided as among_processes
from ..progress import Progress, no_progress
from .metrics import Columns


def predictions(
    kind: str,
    model: PreTrainedModel,
    features: Sequence[Feature],
    collate: Collate,
    progress: Progress = no_progress,
    *,
    divided: bool = False,
) -> Columns:
    """A model's predictions for labelled rows.

    Args:
        kind: kind of the task.
        model: model with the task's head.
        features: rows with ``labels``; for masked language models, already masked.
        collate: makes a batch of them.
        progress: progress callback, called after every batch.
        divided: whether several processes, which all call this, divide the batches. All get all predictions.

    Returns:
        Predictions and labels, or counts, in the order of the rows.
    """
    batches = list(within_tokens(features, tokens_of_pass(model)))

    def predict(own: Sequence[list[int]]) -> list[Mapping[str, list[Any]]]:
        done, total = 0, sum(map(len, own))
        progress("measuring", done, total)
        parts = []
        with evaluating(model), torch.no_grad():
            for rows in own:
                batch = on_device(collate([features[row] for row in rows]), model)
                labels = batch.pop("labels")
                parts.append(_columns(kind, model, model(**batch).logits.float(), labels))
                done += len(rows)
                progress("measuring", done, total)
        return parts

    parts = among_processes(batches, predict, evenly=is_sharded(model)) if divided else predict(batches)
    original_order = np.argsort([row for rows in batches for row in rows])
    names = parts[0] if parts else ()
    return {name: np.asarray([value for part in parts for value in part[name]])[original_order] for name in names}


def _columns(kind: str, model: PreTrainedModel, logits: Tensor, labels: Tensor) -> Mapping[str, list[Any]]:
    if kind == "regression":
        return {"predicted": logits.flatten().tolist(), "label": labels.tolist()}
    if kind == "classification":
        return {
            "predicted": logits.argmax(-1).tolist(),
            "label": labels.tolist(),
            "classes": [logits.shape[-1]] * len(labels),
        }
    seen = labels != IGNORED  # (B, T)
    predicted = logits.argmax(-1)
    counts = {
        "tokens": seen.sum(1).tolist(),
        "correct": ((predicted == labels) & seen).sum(1).tolist(),
    }
    if kind in ("masked-lm", "translation"):
        loss = functional.cross_entropy(logits.transpose(1, 2), labels, ignore_index=IGNORED, reduction="none")
        return counts | {"loss": loss.sum(1).tolist()}
    return counts | _entities(names_of(model), predicted, labels, seen)


def _entities(names: list[str], predicted: Tensor, labels: Tensor, seen: Tensor) -> dict[str, list[int]]:
    """Entities as seqeval counts them: found if type, start and end are correct."""
    try:
        from seqeval.metrics.sequence_labeling import get_entities
    except ImportError as error:
        raise ExtraError("The F1 of entities needs seqeval: pip install 'collab[train]'.") from error
    counts: dict[str, list[int]] = {"found": [], "entities": [], "entities_predicted": []}
    for row in range(len(labels)):
        actual, predicted_entities = (
            set(get_entities([names[number] for number in tags[row][seen[row]].tolist()]))
            for tags in (labels, predicted)
        )
        counts["found"].append(len(actual & predicted_entities))
        counts["entities"].append(len(actual))
        counts["entities_predicted"].append(len(predicted_entities))
    return counts
