"""Healing: training the new parameters of a converted model to match the original, without labels."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers import PreTrainedModel

from ..data.features import Batch, collate, row_batches
from ..data.prepare import Unlabelled, features_of, hold_out
from ..device import resolve_device
from ..errors import ConfigurationError, TrainingError
from ..evaluation.compare import agreement, check_comparable
from ..io.checkpoint import Checkpoint
from ..models.families import collaborative_layers
from ..models.inputs import on_device
from ..models.layers import FACTORS, count_parameters, entry_of
from ..models.states import evaluating, set_dropout
from ..progress import Progress, no_progress
from ..steps.training import Healing
from .distillation import DistillationTrainer, distillation_loss, teacher_outputs
from .learning_rate import find_learning_rate
from .options import HealOptions, RunOptions, Trainable
from .run import RunData, RunResult, Work, run, short_of_memory, steps_of
from .work import temporary_work

logger = logging.getLogger(__name__)

_TRIED = 64
"""Training rows to find the learning rate on, and as many held-out rows whose loss it must not raise."""

_PERIOD = 8
_HELD_OUT = 512


def heal(
    checkpoint: Checkpoint | PreTrainedModel,
    teacher: Checkpoint | PreTrainedModel,
    data: Unlabelled = "synthetic",
    *,
    options: HealOptions | None = None,
    work: Path | None = None,
    restart: bool = False,
    progress: Progress = no_progress,
) -> Checkpoint:
    """Trains a converted model, in place, to match its original's hidden states after every layer, and its logits.

    The best weights on the held-out rows are kept. The model is left unchanged if they do not lower the loss, or if its
    answers diverge more from the teacher's than before.

    Args:
        checkpoint: the converted model, with its tokenizer or image processor.
        teacher: the original.
        data: text or images such as the model will be used on; ``"synthetic"`` for random words.
        options: training settings.
        work: folder for unfinished work, from which an interrupted run resumes; None for a temporary one.
        restart: whether to discard an unfinished run in `work`.
        progress: progress callback, called after every step with the last metrics.

    Returns:
        The model, with a `Healing` as its report.

    Raises:
        ConfigurationError: if teacher and model do not fit together, or there is nothing to train.
        DataError: if the data cannot be read or used.
        TrainingError: if the loss becomes NaN or infinite, memory is short, or `work` holds another unfinished run.
    """
    options = options or HealOptions()
    checkpoint, original = Checkpoint.of(checkpoint), Checkpoint.of(teacher)
    model, tokenizer = checkpoint.model, checkpoint.processor
    check_comparable(model, original.model)
    features, summary = features_of(
        model,
        tokenizer,
        data,
        samples=options.samples,
        max_length=options.max_length,
        seed=options.run.seed,
        writer=original.model,
    )
    train, held_out = hold_out(features, max(_PERIOD, -(-len(features) // _HELD_OUT)))
    start = time.perf_counter()
    rows = RunData(train, held_out, lambda batch: collate(model, tokenizer, batch))
    with temporary_work(work) as folder:
        outcome = _heal(_Pair(model, original.model, tokenizer), rows, options, Work(folder, restart), progress)
    report = Healing(
        data=summary | {"held_out": len(held_out)},
        settings=asdict(outcome.options),
        parameters=outcome.parameters,
        before=outcome.before,
        after=outcome.after,
        improved=outcome.improved,
        steps=outcome.run.steps,
        best_step=outcome.run.best_step if outcome.improved else 0,
        evaluations=outcome.run.history,
        seconds=time.perf_counter() - start,
        teacher=original.name,
    )
    return checkpoint.then(report)


@dataclass(frozen=True)
class _Pair:
    """A converted model, its teacher, and the tokenizer or image processor of both."""

    model: PreTrainedModel
    teacher: PreTrainedModel
    tokenizer: Any

    def batches(self, rows: Sequence[Any], size: int) -> list[Batch]:
        """Features as batches of `size` rows."""
        return row_batches(self.model, self.tokenizer, list(rows), size)


class _Outcome(NamedTuple):
    options: HealOptions
    parameters: int
    before: dict[str, float]
    after: dict[str, float]
    improved: bool
    run: RunResult


def _heal(pair: _Pair, rows: RunData, options: HealOptions, work: Work, progress: Progress) -> _Outcome:
    """Trains the model, and restores it if that made it worse."""
    model, teacher = pair.model, pair.teacher
    batches = pair.batches(rows.held_out, options.run.batch_size)
    agreed = agreement(teacher, model, batches)
    with evaluating(model, teacher), _training_only(model, options.trainable) as parameters:
        initial = {name: parameter.detach().clone() for name, parameter in parameters.items()}
        steps = steps_of(options.run, len(rows.train)) if options.trainable == "layers" else 1
        work = replace(work, key=f"heal {options} {teacher.name_or_path}")
        result = run(
            DistillationTrainer,
            model,
            options.run,
            rows,
            work,
            find_rate=lambda: _learning_rate(pair, list(parameters.values()), rows, options.run, steps),
            progress=progress,
            teacher=teacher,
        )
        before = result.start.before | (agreed or {})
        after = result.best | (agreement(teacher, model, batches) or {})
        worse = _what_got_worse(before, after)
        if worse:
            with torch.no_grad():
                for name, parameter in parameters.items():
                    parameter.copy_(initial[name])
            logger.warning(
                "Healing did not improve the model on the held-out rows (%s %.5f before, %.5f at best), so it is left "
                "unchanged. Use more or other data, more steps, or a lower learning rate.",
                *worse,
            )
    used = replace(options, run=replace(options.run, learning_rate=result.start.learning_rate))
    count = sum(map(count_parameters, parameters.values()))
    return _Outcome(used, count, before, before if worse else after, not worse, result)


def _what_got_worse(before: dict[str, Any], after: dict[str, Any]) -> tuple[str, float, float] | None:
    """A metric that training did not improve, with its values before and after: the loss, or the divergence of answers.

    The loss is mostly of hidden states. They can come closer while the answers of a good classifier diverge more.
    """
    if not after["loss"] < before["loss"]:
        return "loss", before["loss"], after["loss"]
    if after.get("kl", 0) > before.get("kl", 0):
        return "divergence of the answers", before["kl"], after["kl"]
    return None


def _learning_rate(
    pair: _Pair, parameters: list[nn.Parameter], rows: RunData, options: RunOptions, steps: int
) -> float:
    """The learning rate to heal with; see `find_learning_rate`."""
    device = resolve_device(options.device)
    student, teacher = pair.model.eval().to(device), pair.teacher.eval().to(device)

    def taught(features: Sequence[Any]) -> Iterator[tuple[Any, Batch]]:
        for part in pair.batches(features[:_TRIED], options.batch_size // options.gradient_accumulation_steps):
            batch = on_device(part, device)
            yield teacher_outputs(teacher, batch), batch

    def backward() -> None:
        for expected, batch in taught(rows.train):
            distillation_loss(student, teacher, expected, batch)[0].backward()

    with short_of_memory():
        held_out = list(taught(rows.held_out))  # once for all learning rates

        def loss() -> float:
            return sum(float(distillation_loss(student, teacher, *answered)[0]) for answered in held_out)

        return find_learning_rate(parameters, backward, loss, steps)


@contextmanager
def _training_only(model: PreTrainedModel, trainable: Trainable) -> Iterator[dict[str, nn.Parameter]]:
    """Lets only the chosen parameters require gradients, without dropout, inside the context; yields them by name."""
    chosen = _chosen(model, trainable)
    if not chosen:
        raise ConfigurationError("The model has no collaborative attention, so there are no new factors to heal.")
    if any(parameter.dtype != torch.float32 for parameter in chosen.values()):
        raise TrainingError("Healing needs weights in float32. Call model.float() first and cast back afterwards.")
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
            prefixes += [f"{name}.{part}" for part in FACTORS]
        elif trainable == "layers":
            prefixes.append(f"{entry_of(model, name)}.")
        else:
            prefixes += [f"{name}.", f"{layer.output_name(name)}."]
    # The content of positions of a head of full width follows from its queries: trained apart, no native head has both.
    tied = tuple(
        f"{name}.{part}"
        for name, layer in layers.items()
        for part in FACTORS
        if getattr(layer, "position_content", None) is not None
        and layer.spec.rank == layer.total_heads * layer.attention_head_size
    )
    return {
        name: parameter
        for name, parameter in model.named_parameters()
        if name.startswith(tuple(prefixes)) and not name.startswith(tied)
    }
