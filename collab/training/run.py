"""A training run with transformers' `Trainer` that can be resumed, and stops when the loss becomes NaN or infinite.

The work folder of an unfinished run holds checkpoints that load like exports, and `run.json`, which identifies the run.
A checkpoint is valid once it contains a marker file.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import EarlyStoppingCallback, PreTrainedModel, Trainer, TrainerState, set_seed
from transformers.trainer_callback import PrinterCallback
from transformers.utils import logging as transformers_logging

from ..data.batches import length_of
from ..device import Dtype, resolve_device
from ..errors import ConfigurationError, TrainingError, is_short_of_memory
from ..io.failures import writing
from ..io.unfinished import WHOLE, newest_checkpoint
from ..models.sharded import is_sharded
from ..models.weights import bytes_of, digest_of
from ..processes import connect, from_main
from ..progress import Progress, no_progress
from .arguments import RunData, precision_of, training_arguments
from .options import RunOptions
from .sampling import LengthSampler
from .trainer import GuardedTrainer, Marker, Reporter, metrics_in
from .work import LEFT, Start, open_work, record_start

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Work:
    """Where a run keeps its unfinished work.

    Attributes:
        folder: the work folder.
        restart: whether to discard an unfinished run in it.
        key: what the run depends on besides model, data and options, such as the teacher.
    """

    folder: Path
    restart: bool = False
    key: str = ""


@dataclass(frozen=True)
class RunResult:
    """Result of a finished run, which leaves the weights of the best checkpoint in the model.

    Attributes:
        start: metrics on the held-out rows before the first step, learning rate and precision.
        best: metrics of the best checkpoint.
        best_step: step of the best checkpoint.
        steps: number of steps.
        history: metrics of every evaluation, with its step.
    """

    start: Start
    best: dict[str, float]
    best_step: int
    steps: int
    history: list[dict[str, float]]


def run(
    trainer_class: type[GuardedTrainer],
    model: PreTrainedModel,
    options: RunOptions,
    data: RunData,
    work: Work,
    *,
    find_rate: Callable[[Dtype], float] | None = None,
    progress: Progress = no_progress,
    **trainer_arguments: Any,
) -> RunResult:
    """Trains a model in place, or resumes an interrupted run with the same settings.

    Rows that do not fill a batch are dropped from an epoch, so that a step sees the same rows whatever the number of
    processes.

    Args:
        trainer_class: the trainer, which computes the loss.
        model: model to train; parameters that do not require gradients are not changed.
        options: training settings.
        data: rows to train and to evaluate on.
        work: where unfinished work is kept.
        find_rate: finds the learning rate if the options give none, in the precision of the run; it is called once for
            a run, however often that is resumed, by all processes if the model is sharded and by the main one alone
            otherwise.
        progress: progress callback, called after every step.
        trainer_arguments: further arguments of `trainer_class`.

    Returns:
        The metrics before training and of the best checkpoint.

    Raises:
        TrainingError: if the loss becomes NaN or infinite, memory is short, or the work folder holds an unfinished run
            with other settings or data.
        DeviceError: if the device is not available.
    """
    connect()  # before accelerate does, with a time limit that the search for a learning rate may exceed
    precision = precision_of(options, resolve_device(options.device))
    arguments = training_arguments(replace(options, precision=precision), data, work.folder)
    fingerprint = _fingerprint(model, options, data, work.key)
    with writing(f"Unfinished work in {work.folder}", LEFT):
        start = from_main(lambda: open_work(work.folder, fingerprint, work.restart))
    if start is not None and start.precision != precision:
        arguments = training_arguments(replace(options, precision=start.precision), data, work.folder)
    lengths = [length_of(row) for row in data.train]
    # What saves memory where it is asked for leaves the rows of a step as they are.
    passes = arguments.gradient_accumulation_steps if options.gradient_accumulation_steps is None else 1
    sampler = LengthSampler(lengths, options.batch_size, options.seed, passes)
    callbacks = [Marker(sampler), Reporter(progress)]
    if options.patience is not None:
        callbacks.append(EarlyStoppingCallback(options.patience))
    with (
        _as_it_was(model, options.gradient_checkpointing),
        short_of_memory(),
        writing(f"Unfinished work in {work.folder}", LEFT),
        _without_bars(),
    ):
        trainer = trainer_class(
            model=model,
            args=arguments,
            train_dataset=list(data.train),
            eval_dataset=sorted(data.held_out, key=length_of),  # little padding
            data_collator=data.collate,
            callbacks=callbacks,
            sampler=sampler,
            shard=options.shard,
            **trainer_arguments,
        )
        trainer.remove_callback(PrinterCallback)
        if start is None:
            find = partial(find_rate or _missing_rate, precision)
            rate = options.learning_rate or (find() if is_sharded(model) else from_main(find))
            start = Start(metrics_in(trainer.evaluate()), rate, precision)
            if trainer.is_world_process_zero():
                record_start(work.folder, fingerprint, start)
        trainer.args.learning_rate = start.learning_rate
        set_seed(options.seed + trainer.args.process_index)  # different dropout in each process
        _train_or_resume(trainer, newest_checkpoint(work.folder), options.patience)
    return _result(trainer, start, data.best_by)


def require_float32(parameters: Iterable[nn.Parameter]) -> None:
    """Raises a TrainingError for parameters in half precision, for which the steps of training are too small."""
    if any(parameter.is_floating_point() and parameter.dtype != torch.float32 for parameter in parameters):
        raise TrainingError("Training needs weights in float32. Call model.float() first and cast back afterwards.")


def _missing_rate(precision: Dtype) -> float:
    raise ConfigurationError("learning_rate is missing; use for example 5e-5.")


@contextlib.contextmanager
def _without_bars() -> Iterator[None]:
    """No progress bars for the files of checkpoints, which are no progress of the training."""
    shown = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            transformers_logging.enable_progress_bar()


def _train_or_resume(trainer: Trainer, last: Path | None, patience: int | None) -> None:
    """Trains from the start or from the last checkpoint; only loads the best weights if that was the end."""
    if last is not None:
        logger.warning("Resuming from %s.", last)
    if last is not None and _is_finished(last, trainer.args.max_steps, patience):
        trainer.state = TrainerState.load_from_json(str(last / "trainer_state.json"))
        best = last.with_name(f"checkpoint-{trainer.state.best_global_step}")
        if not (best / WHOLE).is_file():
            raise TrainingError(f"{best} is missing, so start again with restart=True (--restart).")
        trainer.state.best_model_checkpoint = str(best)  # the folder may have been moved
        trainer._load_best_model()
    else:
        trainer.train(resume_from_checkpoint=str(last) if last else None)


def _result(trainer: Trainer, start: Start, best_by: str) -> RunResult:
    """The metrics in a trainer's log, beside those before the first step."""
    log = trainer.state.log_history
    history = [{"step": entry["step"]} | metrics_in(entry) for entry in log if f"eval_{best_by}" in entry]
    best_step = trainer.state.best_global_step or trainer.state.global_step
    best = next((entry for entry in history if entry["step"] == best_step), history[-1])
    return RunResult(
        start=start,
        best={name: value for name, value in best.items() if name != "step"},
        best_step=best_step,
        steps=trainer.state.global_step,
        history=history,
    )


@contextlib.contextmanager
def _as_it_was(model: PreTrainedModel, checkpointing: bool) -> Iterator[None]:
    """Undoes what `Trainer` and accelerate leave on a model: a wrapped forward, settings, gradients."""
    cached = getattr(model.config, "use_cache", None)
    if checkpointing:
        _checkpointing(model, "enable")
    try:
        yield
    finally:
        for name in ("forward", "_original_forward"):
            model.__dict__.pop(name, None)
        if checkpointing:
            _checkpointing(model, "disable")
        if cached is None:
            model.config.__dict__.pop("use_cache", None)
        else:
            model.config.use_cache = cached
        model.zero_grad(set_to_none=True)
        model.eval()


def _checkpointing(model: PreTrainedModel, what: str) -> None:
    """Turns gradient checkpointing on or off (``enable`` or ``disable``), under its newer name if it exists."""
    for name in ("activation", "gradient"):
        if hasattr(model, f"{name}_checkpointing_{what}"):
            getattr(model, f"{name}_checkpointing_{what}")()
            return


def _is_finished(checkpoint: Path, steps: int, patience: int | None) -> bool:
    """Whether a run was interrupted after its last step."""
    state = TrainerState.load_from_json(str(checkpoint / "trainer_state.json"))
    measured = [entry["step"] for entry in state.log_history if any(name.startswith("eval_") for name in entry)]
    waited = sum(step > (state.best_global_step or 0) for step in measured)
    return state.global_step >= steps or (patience is not None and waited >= patience)


def _fingerprint(model: PreTrainedModel, options: RunOptions, data: RunData, key: str) -> str:
    """A hash of everything that a run depends on."""
    digest = hashlib.sha256(json.dumps([asdict(options), key, digest_of(model)]).encode())
    for rows in (data.train, data.held_out):
        for row in rows:
            for name in sorted(row):
                value = row[name]
                digest.update(bytes_of(value) if isinstance(value, Tensor) else repr(value).encode())
    return digest.hexdigest()


@contextlib.contextmanager
def short_of_memory() -> Iterator[None]:
    """Turns an out-of-memory error into a TrainingError that says what helps."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if is_short_of_memory(error):
            raise TrainingError(_SHORT_OF_MEMORY) from error
        raise


_SHORT_OF_MEMORY = (
    "There is too little memory. In this order, try gradient_accumulation_steps=4 (--gradient-accumulation-steps 4), "
    "gradient_checkpointing (slower), precision bfloat16, a shorter max_length (--max-length), a smaller batch_size. "
    "Where a command lacks these options, collab heal has them. Checkpoints are kept, but other settings need "
    "restart=True (--restart)."
)
