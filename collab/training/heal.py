"""Healing: training the new parameters of a converted model to match the original, without labels."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ..data.batches import Batch, Feature, batched, batches_by_length, collate, evenly_spaced, length_of
from ..data.lengths import with_fragments, with_joined
from ..data.mixture import Rows, rows_of
from ..data.prepare import Unlabelled
from ..data.source import Mixture
from ..data.targets import Writer
from ..device import Dtype, resolve_device
from ..errors import ConfigurationError
from ..evaluation.compare import agreement_by_source, check_comparable
from ..io.checkpoint import Checkpoint
from ..models.families import collaborative_layers
from ..models.inputs import longest_text, on_device
from ..models.layers import FACTORS, count_parameters, entry_of
from ..models.outputs import outputs_of
from ..models.positions import with_positions_of
from ..models.sharded import as_run, take_weights
from ..models.states import evaluating, keeping_statistics, set_dropout
from ..models.weights import digest_of
from ..processes import from_main
from ..progress import Progress, no_progress
from ..steps.training import Healing
from .arguments import RunData, accumulation_steps_of, steps_of
from .distillation import Distillation, DistillationTrainer
from .learning_rate import Logits, find_learning_rate
from .muon import Muon
from .options import HealOptions, Trainable
from .run import Work, require_float32, run, short_of_memory
from .work import temporary_work

logger = logging.getLogger(__name__)

_TRIED = 64
"""Training rows to find the learning rate on, and as many held-out rows whose loss it must not raise."""

_DIVERGENCE = 1e-3
"""The least divergence of the outputs to measure theirs by, in nats; that of rounding to bfloat16 is below it."""

_PERIOD = 8
"""At most one in so many rows is held out."""


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
    """Trains a converted model, in place, to match its original's hidden states after every layer, and its outputs.

    The best weights on the held-out rows are kept. The model is left unchanged if they do not lower the loss, if its
    outputs diverge more from the teacher's than before, or if the training is interrupted or fails. Several processes
    divide the rows of every step, and the loss is that of the whole step. With ``options.run.shard``, each keeps a part
    of both models while it trains. An encoder-decoder is trained on given targets, or on what the original writes for
    sources alone.

    Args:
        checkpoint: the converted model, with its tokenizer or image processor.
        teacher: the original.
        data: text or images such as the model will be used on; ``"synthetic"`` for random words.
        options: training settings.
        work: folder for unfinished work, from which an interrupted run resumes, what the original writes included. It
            is left there at the end; delete it then. None for a temporary one.
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
    check_comparable(checkpoint.model, original.model)
    teacher = with_positions_of(original.model, checkpoint.model)
    read = _read(checkpoint, Writer(teacher, options.beams, work), data, options)

    def collated(features: Sequence[Feature]) -> Batch:
        return collate(checkpoint.model, checkpoint.processor, features)

    start = time.perf_counter()
    held_out = _held_out(checkpoint, read)
    model = as_run(checkpoint.model, options.run.shard, options.run.device, torch.float32)
    teacher = as_run(teacher, options.run.shard, options.run.device, torch.float32)
    agreed, before_by_source = agreement_by_source(teacher, model, *held_out)
    train = read.train
    if "embedding_cosine" in (agreed or {}) and "input_ids" in train[0] and checkpoint.processor is not None:
        train = with_fragments(train, options.fragments, checkpoint.processor, options.run.seed)
        longest = longest_text(model, options.max_length)
        train = with_joined(train, options.joined, longest, checkpoint.processor, options.run.seed)
    rows = RunData(train, read.all_held_out, collated)
    with (
        temporary_work(work) as folder,
        evaluating(model, teacher),
        _training_only(model, options.trainable) as parameters,
        _unchanged_by_failure(parameters) as initial,
    ):
        distillation = Distillation(teacher, max((agreed or {}).get("kl", 1.0), _DIVERGENCE))
        result = run(
            DistillationTrainer,
            model,
            options.run,
            rows,
            Work(folder, restart, f"heal {options} {digest_of(teacher)}"),
            find_rate=lambda precision: _learning_rate(
                model, distillation, list(parameters.values()), rows, options, precision, progress
            ),
            progress=progress,
            distillation=distillation,
            optimizer=options.optimizer,
        )
        before = result.start.before | (agreed or {})
        agreed, after_by_source = agreement_by_source(teacher, model, *held_out)
        after = result.best | (agreed or {})
        worse = _what_got_worse(before, after)
        if worse:
            _restore(parameters, initial)
            logger.warning(
                "Healing did not improve the model on the held-out rows (%s %.5f before, %.5f at best), so it is left "
                "unchanged. Use more or other data, more steps, or a lower learning rate.",
                *worse,
            )
        elif model is not checkpoint.model:
            take_weights(checkpoint.model, parameters)
    settings = asdict(options)
    settings["run"] |= {"learning_rate": result.start.learning_rate, "precision": result.start.precision}
    report = Healing(
        data=read.summary,
        settings=settings,
        parameters=sum(map(count_parameters, parameters.values())),
        before=before,
        after=before if worse else after,
        improved=not worse,
        steps=result.steps,
        best_step=0 if worse else result.best_step,
        evaluations=result.history,
        seconds=time.perf_counter() - start,
        teacher=original.name,
        before_by_source=before_by_source,
        after_by_source=before_by_source if worse else after_by_source,
    )
    return checkpoint.then(report)


def _read(checkpoint: Checkpoint, writer: Writer, data: Unlabelled, options: HealOptions) -> Rows:
    """The rows to train and to evaluate on."""
    sources = len(data.sources) if isinstance(data, Mixture) else 1
    needed = options.samples
    if options.run.steps is not None:
        needed = min(needed, options.run.steps * options.run.batch_size + options.held_out)
    return rows_of(
        checkpoint.model,
        checkpoint.processor,
        data,
        samples=needed,
        held_out=lambda count: max(_PERIOD, -(-count * sources // options.held_out)),
        repeats=True,
        max_length=options.max_length,
        seed=options.run.seed,
        writer=writer,
    )


def _held_out(checkpoint: Checkpoint, rows: Rows) -> tuple[list[Batch], list[str]]:
    """Batches of the rows held out, and the source of each if there are several."""
    by_source = {
        name: batched(checkpoint.model, checkpoint.processor, features) for name, features in rows.held_out.items()
    }
    batches = [batch for part in by_source.values() for batch in part]
    return batches, [name for name, part in by_source.items() for _ in part] if len(by_source) > 1 else []


@contextmanager
def _unchanged_by_failure(parameters: dict[str, nn.Parameter]) -> Iterator[dict[str, Tensor]]:
    """Yields the values of parameters, which have them again if the block fails or is interrupted.

    So the same call resumes: a run is recognized by the weights that it began with.
    """
    initial = {name: parameter.detach().clone() for name, parameter in parameters.items()}
    try:
        yield initial
    except BaseException:
        _restore(parameters, initial)
        raise


def _restore(parameters: dict[str, nn.Parameter], initial: dict[str, Tensor]) -> None:
    """Gives parameters their initial values back."""
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(initial[name])


def _what_got_worse(before: dict[str, float], after: dict[str, float]) -> tuple[str, float, float] | None:
    """A metric that training did not improve, with its values before and after: the loss, or how far answers are apart.

    The loss is mostly of hidden states. They can come closer while the outputs of a good classifier diverge more.
    """
    if not after["loss"] < before["loss"]:
        return "loss", before["loss"], after["loss"]
    for metric, name in (("kl", "divergence of the answers"), ("absolute_difference", "difference of the answers")):
        if after.get(metric, 0) > before.get(metric, 0):
            return name, before[metric], after[metric]
    return None


def _learning_rate(
    student: PreTrainedModel,
    distillation: Distillation,
    parameters: list[nn.Parameter],
    data: RunData,
    options: HealOptions,
    precision: Dtype,
    progress: Progress,
) -> float:
    """The learning rate to heal with (`find_learning_rate`); its backward pass tells how long the steps will take."""
    device = resolve_device(options.run.device)
    student, teacher = student.eval().to(device), distillation.teacher.eval().to(device)
    size = options.run.batch_size // accumulation_steps_of(options.run, data.train)
    count = steps_of(options.run, len(data.train))
    steps = count if options.trainable == "layers" else 1

    def taught(features: Sequence[Feature]) -> Iterator[tuple[Any, Batch]]:
        for part in batches_by_length(data.collate, evenly_spaced(features, _TRIED), size):
            batch = on_device(part, student)
            yield distillation.expected(batch), batch

    def backward() -> None:
        halved = precision == "bfloat16"
        for _ in range(2):  # the first time compiles kernels; of the gradients only the signs count
            start, tokens = time.perf_counter(), 0
            with torch.autocast(device.type, torch.bfloat16, enabled=halved):
                for expected, batch in taught(data.train):
                    distillation.loss(student, expected, batch)[0].backward()
                    tokens += batch["input_ids"].numel() if "input_ids" in batch else len(next(iter(batch.values())))
        seconds_per_token = (time.perf_counter() - start) / tokens
        start = time.perf_counter()
        if options.optimizer == "muon":  # Adam takes little time
            Muon(parameters, 0.0, dtype=torch.bfloat16 if halved else torch.float32).step()
        seconds_per_step = time.perf_counter() - start
        to_come = options.run.batch_size * mean(map(length_of, data.train))  # tokens of a step
        minutes = math.ceil(count * (seconds_per_token * to_come + seconds_per_step) / 60)
        progress(f"training; about {minutes} minute{'s' * (minutes > 1)}", 0, count)

    with short_of_memory():
        held_out = list(taught(data.held_out))  # once for all learning rates

        def loss() -> float:
            here = sum(float(distillation.loss(student, *pair)[0]) for pair in held_out)
            return from_main(lambda: here)  # all must come to the same end

        uncertain = [output for output in outputs_of(teacher, held_out[0][0], None) if output.uncertain]
        by_token = all(output.of_tokens for output in uncertain)
        logits: Logits = "none" if not uncertain else "tokens" if by_token else "rows"
        return find_learning_rate(parameters, backward, loss, steps, logits, options.optimizer)


@contextmanager
def _training_only(model: PreTrainedModel, trainable: Trainable) -> Iterator[dict[str, nn.Parameter]]:
    """Lets only the chosen parameters require gradients, without dropout, inside the context; yields them by name."""
    chosen = _chosen(model, trainable)
    if not chosen:
        raise ConfigurationError("The model has no collaborative attention, so there are no new factors to heal.")
    require_float32(chosen.values())
    flags = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in chosen)
    try:
        with set_dropout(model, 0.0), keeping_statistics(model):
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
