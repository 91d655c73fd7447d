"""Healing: training what a conversion made new against the original, without labels."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from ..data.features import Batch, collate, row_batches
from ..data.prepare import Unlabelled, features_of, hold_out
from ..errors import ConfigurationError, TrainingError
from ..evaluation.compare import agreement, check_comparable
from ..io.options import Progress, no_progress
from ..io.report import installed_versions
from ..models.families import collaborative_layers
from ..models.inputs import on_device
from ..models.layers import count_parameters
from ..models.states import evaluating, set_dropout
from .distillation import DistillationTrainer, answers, distillation_loss
from .learning_rate import find_learning_rate
from .options import HealOptions, RunOptions, Trainable
from .run import device_of, run, short_of_memory
from .work import temporary_work

logger = logging.getLogger(__name__)

_TRIED = 64
"""Rows that the learning rate is tried on, and as many others that it must not harm."""

_PERIOD = 8
_HELD_OUT = 512


@dataclass(frozen=True)
class Healing:
    """What healing did.

    Attributes:
        record: the settings and what was measured on the held-out rows: ``before`` and ``after``, each with ``loss``,
            the mean relative squared error of hidden states and logits, and the agreement with the teacher;
            ``improved`` says whether the model was changed.
    """

    record: dict[str, Any]

    @property
    def improved(self) -> bool:
        """Whether the model is better than before. If not, it is as it was."""
        return self.record["improved"]


def heal(
    model: PreTrainedModel,
    teacher: PreTrainedModel,
    data: Unlabelled = "synthetic",
    *,
    tokenizer: Any = None,
    options: HealOptions | None = None,
    work: Path | None = None,
    restart: bool = False,
    progress: Progress = no_progress,
) -> Healing:
    """Trains a converted model, in place, to have the hidden states of its original after every layer, and its logits.

    The weights that come closest on the held-out rows are kept. If none come closer than those it had, or its answers
    diverge more than theirs from the teacher's, it keeps those.

    Args:
        model: the converted model.
        teacher: the original.
        data: text or images such as the model will see; ``"synthetic"`` for random vocabulary.
        tokenizer: the model's tokenizer, or image processor.
        options: how.
        work: a folder for unfinished work, from which an interrupted run goes on; None for a temporary one.
        restart: forget an unfinished run in `work`.
        progress: called after every step, with what was last measured.

    Raises:
        ConfigurationError: if teacher and model do not go together, or there is nothing to train.
        DataError: if the data cannot be read or used.
        TrainingError: as `collab.training.run.run`.
    """
    options = options or HealOptions()
    check_comparable(model, teacher)
    features, summary = features_of(
        model,
        tokenizer,
        data,
        samples=options.samples,
        max_length=options.max_length,
        seed=options.run.seed,
    )
    kept, held = hold_out(features, max(_PERIOD, -(-len(features) // _HELD_OUT)))
    start = time.perf_counter()
    batches = row_batches(model, tokenizer, held, options.run.batch_size)
    agreed = agreement(teacher, model, batches)
    with (
        evaluating(model, teacher),
        _training_only(model, options.trainable) as parameters,
        temporary_work(work) as folder,
    ):
        initial = {name: parameter.detach().clone() for name, parameter in parameters.items()}
        if options.run.learning_rate is None:
            rate = _learning_rate(model, teacher, tokenizer, list(parameters.values()), kept, held, options.run)
            options = replace(options, run=replace(options.run, learning_rate=rate))
        result = run(
            DistillationTrainer,
            model,
            options.run,
            folder,
            train=kept,
            held_out=held,
            collate=lambda rows: collate(model, tokenizer, rows),
            restart=restart,
            key=f"heal {options} {teacher.name_or_path}",
            progress=progress,
            teacher=teacher,
        )
        before = result.before | (agreed or {})
        after = result.best | (agreement(teacher, model, batches) or {})
        worse = _what_got_worse(before, after)
        if worse:
            with torch.no_grad():
                for name, parameter in parameters.items():
                    parameter.copy_(initial[name])
            logger.warning(
                "Healing did not make the model better on the held-out rows (%s %.5f before, %.5f at best), so it is "
                "as it was. Give it more or other data, more steps, or a lower learning rate.",
                *worse,
            )
    return Healing(
        {
            "step": "heal",
            "data": summary | {"held_out": len(held)},
            "settings": asdict(options),
            "parameters": sum(map(count_parameters, parameters.values())),
            "before": before,
            "after": before if worse else after,
            "improved": not worse,
            "steps": result.steps,
            "best_step": 0 if worse else result.best_step,
            "evaluations": result.history,
            "seconds": time.perf_counter() - start,
            "versions": installed_versions(),
        }
    )


def _what_got_worse(before: dict[str, Any], after: dict[str, Any]) -> tuple[str, float, float] | None:
    """A name, and the values before and after, where training brought no lower loss or a higher divergence of answers.

    The loss is mostly of hidden states. They can come closer while a classifier that had lost little answers otherwise.
    """
    if not after["loss"] < before["loss"]:
        return "loss", before["loss"], after["loss"]
    if after.get("kl", 0) > before.get("kl", 0):
        return "divergence of the answers", before["kl"], after["kl"]
    return None


def _learning_rate(
    model: PreTrainedModel,
    teacher: PreTrainedModel,
    tokenizer: Any,
    parameters: list[nn.Parameter],
    train: list[Any],
    held_out: list[Any],
    options: RunOptions,
) -> float:
    """The learning rate to heal with; see `find_learning_rate`."""
    device = device_of(options)
    for one in (model, teacher):
        one.eval().to(device)

    def taught(rows: list[Any]) -> Iterator[tuple[Any, Batch]]:
        for part in row_batches(
            model, tokenizer, rows[:_TRIED], options.batch_size // options.gradient_accumulation_steps
        ):
            batch = on_device(part, device)
            yield answers(teacher, batch), batch

    def backward() -> None:
        for expected, batch in taught(train):
            distillation_loss(model, teacher, expected, batch)[0].backward()

    with short_of_memory():
        others = list(taught(held_out))  # once, for all that is tried
        return find_learning_rate(
            parameters, backward, lambda: sum(float(distillation_loss(model, teacher, *pair)[0]) for pair in others)
        )


@contextmanager
def _training_only(model: PreTrainedModel, trainable: Trainable) -> Iterator[dict[str, nn.Parameter]]:
    """Has only the chosen parameters require gradients, and nothing dropped, for a while; gives those parameters."""
    chosen = _chosen(model, trainable)
    if not chosen:
        raise ConfigurationError("The model has no collaborative attention, so there are no new factors to heal.")
    if any(parameter.dtype != torch.float32 for parameter in chosen.values()):
        raise TrainingError("Healing needs weights in float32: model.float(). Cast them back afterwards.")
    flags = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in chosen)
    try:
        with set_dropout(model, 0.0):
            yield chosen
    finally:
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(flags[name])


def _chosen(model: PreTrainedModel, trainable: Trainable) -> dict[str, nn.Parameter]:
    layers = collaborative_layers(model)
    if trainable == "all":
        return dict(model.named_parameters()) if layers else {}
    prefixes = []
    for name, layer in layers.items():
        if trainable == "factors":
            prefixes += [f"{name}.{part}" for part in ("query.", "key.", "mixing", "content_bias.", "query_offset")]
        else:
            prefixes += [f"{name}.", f"{layer.output_name(name)}."]
    return {name: one for name, one in model.named_parameters() if name.startswith(tuple(prefixes))}
