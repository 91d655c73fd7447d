"""A training run with transformers' `Trainer` that can be resumed, and stops when the loss becomes NaN or infinite.

The work folder of an unfinished run holds checkpoints that load like exports, and `run.json`, which identifies the run.
A checkpoint is valid once it contains a marker file.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import (
    EarlyStoppingCallback,
    PreTrainedModel,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
    set_seed,
)
from transformers.trainer_callback import PrinterCallback
from transformers.utils import logging as transformers_logging

from ..data.features import length_of
from ..device import resolve_device
from ..errors import ConfigurationError, ExtraError, TrainingError, is_short_of_memory
from ..io.failures import writing
from ..processes import processes
from ..progress import Progress, no_progress
from .options import RunOptions
from .sampling import LengthSampler
from .work import WHOLE, Start, drop_other_checkpoints, newest_checkpoint, open_work, record_start

logger = logging.getLogger(__name__)

if importlib.util.find_spec("accelerate") is None:
    raise ExtraError("Training needs the package accelerate: pip install 'collab[train]'.")


@dataclass(frozen=True)
class RunData:
    """The rows that a run is trained and evaluated on.

    Attributes:
        train: features of the training rows.
        held_out: features of the rows to evaluate on.
        collate: makes a batch of features.
        best_by: the metric that selects the best checkpoint.
        greater_is_better: whether larger values of it are better.
    """

    train: Sequence[dict[str, Any]]
    held_out: Sequence[dict[str, Any]]
    collate: Callable[[list[dict[str, Any]]], dict[str, Any]]
    best_by: str = "loss"
    greater_is_better: bool = False


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
        start: metrics on the held-out rows before the first step, and the learning rate.
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


class GuardedTrainer(Trainer):
    """A `Trainer` that stops when the loss becomes NaN or infinite, before it spoils the weights."""

    loss_is_scaled_for_ga = False

    def __init__(self, *, sampler: LengthSampler, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._sampler = sampler
        self.model_accepts_loss_kwargs = False  # our losses are means over the rows of a part

    def _get_train_sampler(self, train_dataset: Any = None) -> LengthSampler:
        return self._sampler

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        """Batches of all held-out rows: only training drops a smaller last batch."""
        dropping, self.args.dataloader_drop_last = self.args.dataloader_drop_last, False
        try:
            return super().get_eval_dataloader(eval_dataset)
        finally:
            self.args.dataloader_drop_last = dropping

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        """Warns of weights that a checkpoint lacks, but for tied ones, which are in it under one name."""
        tied = getattr(self.model, "all_tied_weights_keys", {})
        load_result.missing_keys[:] = [name for name in load_result.missing_keys if name not in tied]
        super()._issue_warnings_after_load(load_result)

    def training_step(self, model: Any, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Tensor:
        """One step; raises a TrainingError if its loss is NaN or infinite."""
        loss = super().training_step(model, inputs, num_items_in_batch)
        bad = self.accelerator.reduce((~loss.isfinite()).any().float(), reduction="sum")  # in any process
        if float(bad) > 0:
            kept = newest_checkpoint(Path(str(self.args.output_dir)))
            raise TrainingError(
                f"The loss is not a number (NaN or infinite) at step {self.state.global_step + 1}. "
                f"{f'The last good checkpoint is {kept}. ' if kept else ''}Lower learning_rate, or use precision "
                "float32 or bfloat16; then start again with restart=True (--restart)."
            )
        return loss


class _Marker(TrainerCallback):
    """Marks complete checkpoints, and has the last step evaluated and saved."""

    def __init__(self, sampler: LengthSampler) -> None:
        self._sampler = sampler

    def on_epoch_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        # transformers and accelerate do not set it in several processes.
        self._sampler.set_epoch(state.global_step // self._sampler.steps)

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> TrainerControl:
        if state.global_step >= state.max_steps:
            control.should_evaluate = control.should_save = True
        return control

    def on_save(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            work, name = Path(args.output_dir), f"checkpoint-{state.global_step}"
            (work / name / "training_args.bin").unlink(missing_ok=True)  # an unused pickle
            (work / name / WHOLE).touch()
            drop_other_checkpoints(work, name, state.best_model_checkpoint)


class _Reporter(TrainerCallback):
    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._last: dict[str, float] = {}

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **kwargs: Any) -> None:
        self._last = _numbers(metrics or {})
        logger.info("step %d: %s", state.global_step, self._last)

    def on_step_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            shown = ", ".join(f"{name} {value:.4f}" for name, value in self._last.items())
            self._progress(f"training {shown}".strip(), state.global_step, state.max_steps)


def run(
    trainer_class: type[GuardedTrainer],
    model: PreTrainedModel,
    options: RunOptions,
    data: RunData,
    work: Work,
    *,
    find_rate: Callable[[], float] | None = None,
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
        find_rate: finds the learning rate if the options give none; it is called once for a run, however often that is
            resumed.
        progress: progress callback, called after every step.
        trainer_arguments: further arguments of `trainer_class`.

    Returns:
        The metrics before training and of the best checkpoint.

    Raises:
        TrainingError: if the loss becomes NaN or infinite, memory is short, or the work folder holds an unfinished run
            with other settings or data.
        DeviceError: if the device is not available.
    """
    arguments = _arguments(options, data, work.folder)
    sampler = LengthSampler([length_of(row) for row in data.train], options.batch_size, options.seed)
    callbacks = [_Marker(sampler), _Reporter(progress)]
    if options.patience is not None:
        callbacks.append(EarlyStoppingCallback(options.patience))
    fingerprint = _fingerprint(model, options, data, work.key)
    kept = "What was kept before is there, and the same command goes on from it."
    with (
        _as_it_was(model, options.gradient_checkpointing),
        short_of_memory(),
        writing(f"Unfinished work in {work.folder}", kept),
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
            **trainer_arguments,
        )
        trainer.remove_callback(PrinterCallback)
        with trainer.args.main_process_first(local=False, desc="work folder"):
            start = open_work(work.folder, fingerprint, work.restart)
        if start is None:
            rate = options.learning_rate or (find_rate or _missing_rate)()
            start = Start(_numbers(trainer.evaluate()), rate)
            if trainer.is_world_process_zero():
                record_start(work.folder, fingerprint, start)
        trainer.args.learning_rate = start.learning_rate
        set_seed(options.seed + trainer.args.process_index)  # different dropout in each process
        _train_or_resume(trainer, newest_checkpoint(work.folder), options.patience)
    return _result(trainer, start, data.best_by)


def _missing_rate() -> float:
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
        trainer._load_best_model()
    else:
        trainer.train(resume_from_checkpoint=str(last) if last else None)


def _result(trainer: Trainer, start: Start, best_by: str) -> RunResult:
    """The metrics in a trainer's log, beside those before the first step."""
    log = trainer.state.log_history
    history = [{"step": entry["step"]} | _numbers(entry) for entry in log if f"eval_{best_by}" in entry]
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


def _is_finished(checkpoint: Path, steps: int, patience: int | None) -> bool:
    """Whether a run was interrupted after its last step."""
    state = TrainerState.load_from_json(str(checkpoint / "trainer_state.json"))
    measured = [entry["step"] for entry in state.log_history if any(name.startswith("eval_") for name in entry)]
    waited = sum(step > (state.best_global_step or 0) for step in measured)
    return state.global_step >= steps or (patience is not None and waited >= patience)


def _checkpointing(model: PreTrainedModel, what: str) -> None:
    """Turns gradient checkpointing on or off (``enable`` or ``disable``), under its newer name if it exists."""
    for name in ("activation", "gradient"):
        if hasattr(model, f"{name}_checkpointing_{what}"):
            getattr(model, f"{name}_checkpointing_{what}")()
            return


def fastest_precision(device: torch.device) -> Literal["bfloat16", "float32"]:
    """``bfloat16`` if the device multiplies it at least 1.5 times as fast as float32."""
    if device.type == "cuda":
        return "bfloat16" if torch.cuda.is_bf16_supported(including_emulation=False) else "float32"
    seconds = {}
    for dtype in (torch.float32, torch.bfloat16):
        left, right = torch.ones(512, 512, dtype=dtype), torch.ones(512, 512, dtype=dtype)
        taken = []
        for _ in range(6):  # the first one prepares the kernel
            start = time.perf_counter()
            left @ right
            taken.append(time.perf_counter() - start)
        seconds[dtype] = min(taken[1:])
    return "bfloat16" if seconds[torch.bfloat16] * 1.5 < seconds[torch.float32] else "float32"


def steps_of(options: RunOptions, rows: int) -> int:
    """Number of steps on so many training rows."""
    return options.steps or max(1, math.ceil(max(1, rows // options.batch_size) * options.epochs))


def _arguments(options: RunOptions, data: RunData, folder: Path) -> TrainingArguments:
    device = resolve_device(options.device)
    cpu = device.type == "cpu"
    precision = options.precision if options.precision != "auto" else fastest_precision(device)
    if precision == "float16" and cpu:
        raise ConfigurationError("float16 trains on a GPU only. Use precision bfloat16 or float32.")
    pieces = options.gradient_accumulation_steps
    if options.batch_size % (processes() * pieces):
        raise ConfigurationError(
            f"A batch of {options.batch_size} rows cannot be divided among {processes()} processes with {pieces} "
            "accumulation steps each. Use another batch_size."
        )
    if precision == "bfloat16" and not cpu and not torch.cuda.is_bf16_supported():
        raise ConfigurationError("This GPU does not support bfloat16. Use precision float16 or float32.")
    rows = len(data.train)
    steps = steps_of(options, rows)
    interval = max(1, steps // options.evaluations)
    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=steps,
        per_device_train_batch_size=options.batch_size // processes() // options.gradient_accumulation_steps,
        per_device_eval_batch_size=min(64, max(8, options.batch_size // options.gradient_accumulation_steps)),
        gradient_accumulation_steps=options.gradient_accumulation_steps,
        learning_rate=options.learning_rate or 0.0,  # set when it is known
        lr_scheduler_type="linear",
        warmup_steps=round(steps * options.warmup),
        weight_decay=options.weight_decay,
        bf16=precision == "bfloat16",
        fp16=precision == "float16",
        eval_strategy="steps",
        eval_steps=interval,
        save_strategy="steps",
        save_steps=interval,
        load_best_model_at_end=True,
        metric_for_best_model=data.best_by,
        greater_is_better=data.greater_is_better,
        logging_strategy="no",
        logging_nan_inf_filter=False,
        seed=options.seed,
        data_seed=options.seed,
        use_cpu=cpu,
        dataloader_pin_memory=not cpu,
        dataloader_drop_last=rows >= options.batch_size,
        remove_unused_columns=False,
        disable_tqdm=True,
        report_to="none",
        ddp_find_unused_parameters=False,
        restore_callback_states_from_checkpoint=options.patience is not None,
    )
    # Several GPUs need several processes; in a single one, transformers would replicate model and multiply the batch.
    arguments._n_gpu = min(1, arguments.n_gpu)
    return arguments


def _fingerprint(model: PreTrainedModel, options: RunOptions, data: RunData, key: str) -> str:
    """A hash of everything that a run depends on."""
    digest = hashlib.sha256(json.dumps([asdict(options), key]).encode())
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name}{tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    for rows in (data.train, data.held_out):
        for row in rows:
            for name in sorted(row):
                value = row[name]
                digest.update(value.numpy().tobytes() if isinstance(value, Tensor) else repr(value).encode())
    return digest.hexdigest()


def _numbers(metrics: dict[str, Any]) -> dict[str, float]:
    """The metrics of an evaluation, without its timings."""
    dropped = ("runtime", "samples_per_second", "steps_per_second", "model_preparation_time")
    evaluated = {name.removeprefix("eval_"): value for name, value in metrics.items() if name.startswith("eval_")}
    return {name: float(value) for name, value in evaluated.items() if name not in dropped}


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
    "gradient_checkpointing (slower), precision bfloat16, a shorter max_length, a smaller batch_size. Checkpoints are "
    "kept, but other settings need restart=True (--restart)."
)
