"""The rows and settings of a training run, as arguments of transformers' `Trainer`."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from transformers import TrainingArguments

from ..data.batches import Feature, length_of
from ..data.encoding import Collate
from ..device import Dtype, resolve_device
from ..errors import ConfigurationError
from ..processes import from_main, processes
from .options import RunOptions

_TOKENS = 8192
"""Tokens of a forward and backward pass at most, where the options leave the number of passes open."""

_MIXED = 16
"""Rows of a pass at least, where a batch is divided only for the sake of different lengths."""

_OF_AN_IMAGE = 256
"""What an image or a recording counts as, in tokens."""


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

    train: Sequence[Feature]
    held_out: Sequence[Feature]
    collate: Collate
    best_by: str = "loss"
    greater_is_better: bool = False


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


def precision_of(options: RunOptions, device: torch.device) -> Dtype:
    """The precision to compute in."""
    return from_main(lambda: fastest_precision(device)) if options.precision == "auto" else options.precision


def steps_of(options: RunOptions, rows: int) -> int:
    """Number of steps on so many training rows."""
    return options.steps or max(1, math.ceil(max(1, rows // options.batch_size) * options.epochs))


def accumulation_steps_of(options: RunOptions, rows: Sequence[Feature]) -> int:
    """Number of forward and backward passes of a batch, which all processes divide among them.

    Where it is left open it follows from the longest row, and not from the number of processes if that divides it. Of
    large batches there are two passes or more, whose rows differ in length (`LengthSampler`).
    """
    if options.gradient_accumulation_steps is not None:
        return options.gradient_accumulation_steps
    longest = max(length_of(row) if "input_ids" in row else _OF_AN_IMAGE for row in rows)
    size = options.batch_size
    possible = [number for number in range(1, size + 1) if size % (number * processes()) == 0] or [1]
    fitting = [number for number in possible if size // number * longest <= _TOKENS] or possible[-1:]
    return next((number for number in fitting if number > 1 and size // number >= _MIXED), fitting[0])


def training_arguments(options: RunOptions, data: RunData, folder: Path) -> TrainingArguments:
    """The options as arguments of `Trainer`.

    Raises:
        ConfigurationError: if a precision or the number of processes does not fit them.
        DeviceError: if the device is not available.
    """
    device = resolve_device(options.device)
    cpu = device.type == "cpu"
    precision = precision_of(options, device)
    if precision == "float16" and cpu:
        raise ConfigurationError("float16 trains on a GPU only. Use precision bfloat16 or float32.")
    accumulated = accumulation_steps_of(options, data.train)
    options.check_processes()
    if processes() > 1 and len(data.train) < options.batch_size:
        raise ConfigurationError(
            f"There are {len(data.train)} rows to train on, fewer than a batch of {options.batch_size}, which "
            f"{processes()} processes divide. Use a smaller batch_size (--batch-size), more rows, or one process."
        )
    if precision == "bfloat16" and not cpu and not torch.cuda.is_bf16_supported():
        raise ConfigurationError("This GPU does not support bfloat16. Use precision float16 or float32.")
    rows = len(data.train)
    steps = steps_of(options, rows)
    interval = math.ceil(steps / options.evaluations)
    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=steps,
        per_device_train_batch_size=options.batch_size // processes() // accumulated,
        per_device_eval_batch_size=min(64, max(8, options.batch_size // accumulated)),
        gradient_accumulation_steps=accumulated,
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
    # Which would else be what a user's configuration of accelerate says.
    arguments.mixed_precision = {"bfloat16": "bf16", "float16": "fp16"}.get(precision, "no")
    return arguments
