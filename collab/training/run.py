"""One training run by transformers' `Trainer`, made safe: it resumes, stops at a bad loss, and says what helps.

Everything unfinished is in a working folder: checkpoints that load like exports do, and `run.json`, which says what run
they belong to. A checkpoint counts once it is whole, which a marker file in it says.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

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

from ..data.features import length_of
from ..errors import ConfigurationError, DeviceError, ExtraError, TrainingError
from ..io.options import Progress, no_progress
from .options import RunOptions
from .sampling import LengthSampler
from .work import WHOLE, drop_other_checkpoints, local_rank, newest_checkpoint, open_work, processes, record_start

logger = logging.getLogger(__name__)

if importlib.util.find_spec("accelerate") is None:
    raise ExtraError("Training needs the package accelerate: pip install 'collab[train]'.")


@dataclass(frozen=True)
class RunResult:
    """A finished run. The model it was given holds the best weights found.

    Attributes:
        before: what the held-out rows showed before the first step.
        best: the same for the best checkpoint.
        best_step: the step it was written at.
        steps: steps done.
        history: what every evaluation showed, with its step.
    """

    before: dict[str, float]
    best: dict[str, float]
    best_step: int
    steps: int
    history: list[dict[str, float]]


class GuardedTrainer(Trainer):
    """A `Trainer` that stops at a loss that is not a number, before it spoils the weights."""

    loss_is_scaled_for_ga = False

    def __init__(self, *, sampler: LengthSampler, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._sampler = sampler
        self.model_accepts_loss_kwargs = False  # our losses are means over the rows of a part

    def _get_train_sampler(self, train_dataset: Any = None) -> LengthSampler:
        return self._sampler

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        """Every row that is held out: only training leaves out a last, smaller batch."""
        dropping, self.args.dataloader_drop_last = self.args.dataloader_drop_last, False
        try:
            return super().get_eval_dataloader(eval_dataset)
        finally:
            self.args.dataloader_drop_last = dropping

    def training_step(self, model: Any, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Tensor:
        """One step; TrainingError if its loss is NaN or infinite."""
        loss = super().training_step(model, inputs, num_items_in_batch)
        bad = self.accelerator.reduce((~loss.isfinite()).any().float(), reduction="sum")  # in any process
        if float(bad) > 0:
            kept = newest_checkpoint(Path(str(self.args.output_dir)))
            raise TrainingError(
                f"The loss is not a number (NaN or infinite) at step {self.state.global_step + 1}. "
                f"{f'The last good state is in {kept}. ' if kept else ''}Lower --learning-rate, or compute in float32 "
                "or bfloat16; then start anew with --restart."
            )
        return loss


class _Marker(TrainerCallback):
    """Marks checkpoints that are whole, and sees to it that the last step is evaluated and kept."""

    def __init__(self, sampler: LengthSampler) -> None:
        self._sampler = sampler

    def on_epoch_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        # transformers and accelerate do not reach it in several processes.
        self._sampler.set_epoch(state.global_step // self._sampler.steps)

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> TrainerControl:
        if state.global_step >= state.max_steps:
            control.should_evaluate = control.should_save = True
        return control

    def on_save(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            work, name = Path(args.output_dir), f"checkpoint-{state.global_step}"
            (work / name / "training_args.bin").unlink(missing_ok=True)  # a pickle that nobody reads
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
    work: Path,
    *,
    train: Sequence[dict[str, Any]],
    held_out: Sequence[dict[str, Any]],
    collate: Callable[[list[dict[str, Any]]], dict[str, Any]],
    best_by: str = "loss",
    greater_is_better: bool = False,
    restart: bool = False,
    key: str = "",
    progress: Progress = no_progress,
    **trainer_arguments: Any,
) -> RunResult:
    """Trains a model in place, or finishes what an interrupted run with the same settings began.

    Rows that do not fill a batch are left out of an epoch, so that a step sees the same rows whatever the number of
    processes.

    Args:
        trainer_class: computes the loss.
        model: what to train; parameters that do not require gradients stay.
        options: how.
        work: the working folder.
        train: features of the rows to learn from.
        held_out: features of the rows to judge by.
        collate: makes a batch of features.
        best_by: the metric that the best checkpoint has.
        greater_is_better: whether more of it is better.
        restart: forget an unfinished run in `work`.
        key: what the run depends on besides, such as the teacher.
        progress: called after every step.
        trainer_arguments: for `trainer_class`.

    Raises:
        TrainingError: if the loss is not a number, memory is short, or `work` holds the unfinished run of other
            settings or data.
        DeviceError: if the device is not there.
    """
    arguments = _arguments(options, work, len(train), best_by, greater_is_better)
    sampler = LengthSampler([length_of(row) for row in train], options.batch_size, options.seed)
    callbacks = [_Marker(sampler), _Reporter(progress)]
    if options.patience is not None:
        callbacks.append(EarlyStoppingCallback(options.patience))
    fingerprint = _fingerprint(model, options, train, held_out, key)
    with _as_it_was(model, options.gradient_checkpointing), short_of_memory():
        trainer = trainer_class(
            model=model,
            args=arguments,
            train_dataset=list(train),
            eval_dataset=sorted(held_out, key=length_of),  # little padding
            data_collator=collate,
            callbacks=callbacks,
            sampler=sampler,
            **trainer_arguments,
        )
        trainer.remove_callback(PrinterCallback)
        with trainer.args.main_process_first(local=False, desc="working folder"):
            before = open_work(work, fingerprint, restart)
        if before is None:
            before = _numbers(trainer.evaluate())
            if trainer.is_world_process_zero():
                record_start(work, fingerprint, before)
        set_seed(options.seed + trainer.args.process_index)  # each process drops other activations
        last = newest_checkpoint(work)
        if last is not None:
            logger.warning("Going on from %s.", last)
        if last is not None and _is_finished(last, arguments.max_steps, options.patience):
            trainer.state = TrainerState.load_from_json(str(last / "trainer_state.json"))
            trainer._load_best_model()
        else:
            trainer.train(resume_from_checkpoint=str(last) if last else None)
    log = trainer.state.log_history
    history = [{"step": entry["step"]} | _numbers(entry) for entry in log if f"eval_{best_by}" in entry]
    best_step = trainer.state.best_global_step or trainer.state.global_step
    best = next((entry for entry in history if entry["step"] == best_step), history[-1])
    return RunResult(
        before=before,
        best={name: value for name, value in best.items() if name != "step"},
        best_step=best_step,
        steps=trainer.state.global_step,
        history=history,
    )


@contextlib.contextmanager
def _as_it_was(model: PreTrainedModel, checkpointing: bool) -> Iterator[None]:
    """Takes back what `Trainer` and accelerate leave on a model: a wrapped forward, settings, gradients."""
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
    """Whether a run had done all that it was to do when it was interrupted."""
    state = TrainerState.load_from_json(str(checkpoint / "trainer_state.json"))
    measured = [entry["step"] for entry in state.log_history if any(name.startswith("eval_") for name in entry)]
    waited = sum(step > (state.best_global_step or 0) for step in measured)
    return state.global_step >= steps or (patience is not None and waited >= patience)


def _checkpointing(model: PreTrainedModel, what: str) -> None:
    """Turns gradient checkpointing on or off, by its newer name where transformers has it."""
    for name in ("activation", "gradient"):
        if hasattr(model, f"{name}_checkpointing_{what}"):
            getattr(model, f"{name}_checkpointing_{what}")()
            return


def device_of(options: RunOptions) -> torch.device:
    """What this process trains on; DeviceError if it is not there."""
    cuda = torch.cuda.is_available()
    if options.device == "cuda" and not cuda:
        raise DeviceError("There is no CUDA device here. Leave --device away to train on the CPU.")
    return torch.device("cpu") if options.device == "cpu" or not cuda else torch.device("cuda", local_rank())


def _arguments(options: RunOptions, work: Path, rows: int, best_by: str, greater_is_better: bool) -> TrainingArguments:
    cpu = device_of(options).type == "cpu"
    if options.precision == "float16" and cpu:
        raise ConfigurationError("float16 trains on a GPU only. Choose bfloat16 or float32.")
    pieces = options.gradient_accumulation_steps
    if options.batch_size % (processes() * pieces):
        raise ConfigurationError(
            f"A batch of {options.batch_size} rows cannot be divided among {processes()} processes with {pieces} "
            "accumulation steps each. Give a --batch-size that can."
        )
    if options.precision == "bfloat16" and not cpu and not torch.cuda.is_bf16_supported():
        raise ConfigurationError("This GPU does not compute in bfloat16. Choose float16 or float32.")
    if options.learning_rate is None:
        raise ConfigurationError("Say how fast to learn: learning_rate, for example 5e-5.")
    per_epoch = max(1, rows // options.batch_size)
    steps = options.steps or max(1, math.ceil(per_epoch * options.epochs))
    interval = max(1, steps // options.evaluations)
    arguments = TrainingArguments(
        output_dir=str(work),
        max_steps=steps,
        per_device_train_batch_size=options.batch_size // processes() // options.gradient_accumulation_steps,
        per_device_eval_batch_size=min(64, max(8, options.batch_size // options.gradient_accumulation_steps)),
        gradient_accumulation_steps=options.gradient_accumulation_steps,
        learning_rate=options.learning_rate,
        lr_scheduler_type="linear",
        warmup_steps=round(steps * options.warmup),
        weight_decay=options.weight_decay,
        bf16=options.precision == "bfloat16",
        fp16=options.precision == "float16",
        eval_strategy="steps",
        eval_steps=interval,
        save_strategy="steps",
        save_steps=interval,
        load_best_model_at_end=True,
        metric_for_best_model=best_by,
        greater_is_better=greater_is_better,
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
    # Several GPUs are for several processes; in one, transformers would copy the model to all and multiply the batch.
    arguments._n_gpu = min(1, arguments.n_gpu)
    return arguments


def _fingerprint(
    model: PreTrainedModel, options: RunOptions, train: Sequence[Any], held_out: Sequence[Any], key: str
) -> str:
    """What a run depends on."""
    digest = hashlib.sha256(json.dumps([asdict(options), key]).encode())
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name}{tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    for rows in (train, held_out):
        for row in rows:
            for name in sorted(row):
                value = row[name]
                digest.update(value.numpy().tobytes() if isinstance(value, Tensor) else repr(value).encode())
    return digest.hexdigest()


def _numbers(metrics: dict[str, Any]) -> dict[str, float]:
    """The metrics of an evaluation, without its timings."""
    dropped = ("runtime", "samples_per_second", "steps_per_second", "model_preparation_time")
    found = {name.removeprefix("eval_"): value for name, value in metrics.items() if name.startswith("eval_")}
    return {name: float(value) for name, value in found.items() if name not in dropped}


@contextlib.contextmanager
def short_of_memory() -> Iterator[None]:
    """Says what helps where memory runs out, as a TrainingError."""
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError) as error:
        raise TrainingError(_TOO_LITTLE) from error
    except RuntimeError as error:
        if "can't allocate memory" in str(error):
            raise TrainingError(_TOO_LITTLE) from error
        raise


_TOO_LITTLE = (
    "There is too little memory. What helps, in this order: --gradient-accumulation-steps 4 (a step in smaller "
    "pieces), --gradient-checkpointing (slower), --precision bfloat16, a shorter --max-length, a smaller "
    "--batch-size. What was done is kept, but other settings start anew with --restart."
)
